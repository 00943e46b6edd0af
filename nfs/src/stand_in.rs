//! Signatures of the kernel's file trees until they are there.
#![allow(missing_docs, clippy::unused_async)]

use std::sync::Arc;

use kernel::request::Context;
use kernel::{Frames, Processor};
use machine::Errno;
use machine::tree::{Attributes, Caller, Node, TreeCall, TreeReply};
use policy::unit::ByteRange;

pub struct FileTree;
pub struct Vnode;

impl FileTree {
    pub fn read_only(&self) -> bool {
        unimplemented!()
    }
    pub fn verifier(&self) -> u64 {
        unimplemented!()
    }
    pub async fn call(&self, _: &Processor, _: Option<&Caller>, _: TreeCall) -> Result<TreeReply, Errno> {
        unimplemented!()
    }
    pub async fn make_durable(&self, _: &Processor, _: &[Node]) -> Result<(), Errno> {
        unimplemented!()
    }
    pub async fn file(&self, _: &Processor, _: Node) -> Result<Arc<Vnode>, Errno> {
        unimplemented!()
    }
}

impl Vnode {
    pub fn attributes(&self) -> Attributes {
        unimplemented!()
    }
    pub async fn refresh(&self, _: &Processor) -> Result<Attributes, Errno> {
        unimplemented!()
    }
    pub fn try_read(&self, _: &Processor, _: ByteRange) -> Option<Frames> {
        unimplemented!()
    }
    pub async fn read(&self, _: &Processor, _: ByteRange, _: Context) -> Result<(ByteRange, Frames), Errno> {
        unimplemented!()
    }
    pub async fn write(&self, _: &Processor, _: ByteRange, _: Frames, _: Context) -> Result<(), Errno> {
        unimplemented!()
    }
    pub async fn commit(&self, _: &Processor, _: Context) -> Result<(), Errno> {
        unimplemented!()
    }
}
