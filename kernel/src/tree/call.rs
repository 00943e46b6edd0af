//! Calls to directory trees of the host. The attributes of a directory are returned by the call of the seam that
//! changes a name in it: each call costs two thread switches, and clients want both.

use std::sync::Arc;

use machine::tree::{Around, BeforeAndAfter, Caller, Node, Tree, TreeCall, TreeOp, TreeReply};
use machine::{Errno, Op};
use parking_lot::Mutex;

use crate::export::ExportNo;
use crate::operation::Hold;
use crate::processor::Processor;
use crate::trace::Event;

impl Processor {
    /// Calls `tree` on behalf of `caller`; without one, for the server itself, which has all permissions.
    ///
    /// # Errors
    /// The host's error number.
    pub async fn tree(
        &self,
        (tree, export): (Tree, ExportNo),
        caller: Option<Caller>,
        call: TreeCall,
    ) -> Result<TreeReply, Errno> {
        self.tree_op((tree, export), caller, call, None).await
    }

    /// As [`Processor::tree`]; also returns the attributes of `nodes` before and after the call.
    ///
    /// # Errors
    /// As [`Processor::tree`].
    pub async fn tree_and_around(
        &self,
        (tree, export): (Tree, ExportNo),
        caller: Option<Caller>,
        call: TreeCall,
        nodes: Vec<Node>,
    ) -> Result<(TreeReply, Vec<BeforeAndAfter>), Errno> {
        let around = Around { nodes, attributes: Arc::default() };
        let reply = self.tree_op((tree, export), caller, call, Some(around.clone())).await?;
        Ok((reply, std::mem::take(&mut *around.attributes.lock())))
    }

    async fn tree_op(
        &self,
        (tree, export): (Tree, ExportNo),
        caller: Option<Caller>,
        call: TreeCall,
        around: Option<Around>,
    ) -> Result<TreeReply, Errno> {
        let whose = (self.job(), export);
        let began = self.begin(Event::TreeCall, whose);
        let reply = Arc::new(Mutex::new(None));
        let op = Box::new(TreeOp { tree, caller, call, reply: Arc::clone(&reply), around });
        // SAFETY: nothing is transferred; the operation owns its arguments and shares ownership of the reply.
        let (result, _) = unsafe { self.perform(Hold::default(), Op::Tree(op)) }.await;
        self.end(began, Event::TreeCall, whose, u64::from(tree.0), 0);
        result?;
        reply.lock().take().ok_or(Errno::IO)
    }
}
