//! A simulated tree under the kernel's cache, and its files.

use std::sync::Arc;

use kernel::queue::DiskQueue;
use kernel::request::Context;
use kernel::tree::{FileTree, FileTreeConfig, OpenFiles, Vnode};
use kernel::{ForcedUnitAccess, Frames, Processor, Switches};
use machine::Errno;
use machine::tree::{Attributes, Creation, Node, SetAttributes, TreeCall, TreeReply};
use policy::unit::{ByteRange, DiskNo};
use sim::{TreeConfig, TreeId, World};

use super::{Host, run, small_kernel};
pub use super::{context, stable};

pub const CACHE_BYTES: u64 = 2 << 20;

pub fn open(world: &World, cpu: &Processor, tree: TreeId, files_max: usize) -> Arc<FileTree> {
    open_within(world, cpu, tree, &OpenFiles::new(files_max))
}

pub fn open_within(world: &World, cpu: &Processor, tree: TreeId, open_files: &Arc<OpenFiles>) -> Arc<FileTree> {
    let queue = cpu.kernel().queue_of_disk(DiskNo(0), || DiskQueue::new(Default::default()));
    let config = FileTreeConfig {
        name: "/files".into(),
        read_only: false,
        open_files: Arc::clone(open_files),
        forced_unit_access: ForcedUnitAccess::Alone,
        queue,
    };
    FileTree::new(cpu, world.open_tree(tree), config)
}

/// A server and its tree.
pub fn server(seed: u64) -> (World, Host, TreeId) {
    server_of(seed, TreeConfig::new())
}

pub fn server_of(seed: u64, config: TreeConfig) -> (World, Host, TreeId) {
    let world = World::new(seed);
    let id = world.add_host("server");
    let tree = world.add_tree(id, config);
    let host = Host::boot(&world, id, small_kernel(2, CACHE_BYTES, Switches::default()));
    (world, host, tree)
}

/// Runs a task on a server's tree, of which so many files may be open. It also gets the world and the tree in it.
pub fn served(seed: u64, files_max: usize, task: impl AsyncFnOnce(Processor, Arc<FileTree>, World, TreeId) + 'static) {
    served_of(seed, TreeConfig::new(), files_max, task);
}

pub fn served_of(
    seed: u64,
    config: TreeConfig,
    files_max: usize,
    task: impl AsyncFnOnce(Processor, Arc<FileTree>, World, TreeId) + 'static,
) {
    let (world, host, id) = server_of(seed, config);
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        let tree = open(&seen, &cpu, id, files_max);
        task(cpu, tree, seen, id).await;
    });
}

pub async fn root(cpu: &Processor, tree: &Arc<FileTree>) -> Node {
    match tree.call(cpu, None, TreeCall::Root).await {
        Ok(TreeReply::Node(node, _)) => node,
        _ => panic!("every tree has a root"),
    }
}

/// A file in the root, created if it does not exist, with a durable name.
pub async fn file(cpu: &Processor, tree: &Arc<FileTree>, name: &str) -> (Node, Arc<Vnode>) {
    let dir = root(cpu, tree).await;
    let attributes = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    let call = TreeCall::Create { dir, name: name.into(), how: Creation::Unchecked, attributes };
    let Ok(TreeReply::Node(node, _)) = tree.call(cpu, None, call).await else { panic!("{name} was not created") };
    tree.make_durable(cpu, &[dir, node]).await.expect("synced");
    (node, tree.file(cpu, node).await.expect("it is a regular file"))
}

/// Frames with `bytes` at the position of a write at `at`.
pub async fn frames_of(cpu: &Processor, at: u64, bytes: &[u8]) -> Frames {
    let blocks = ByteRange::new(at, bytes.len() as u64).blocks();
    let mut frames = cpu.kernel().allocate(cpu, (blocks.end - blocks.start) as usize).await;
    let (mut from, mut left) = ((at % 4096) as usize, bytes);
    for frame in &mut frames {
        let content = frame.bytes_mut().expect("unshared");
        // A marker: bytes outside of the write must never be stored.
        content.fill(0xEE);
        let len = left.len().min(4096 - from);
        content[from..from + len].copy_from_slice(&left[..len]);
        left = &left[len..];
        from = 0;
    }
    frames
}

pub async fn write(
    cpu: &Processor,
    tree: &Arc<FileTree>,
    file: &Arc<Vnode>,
    at: u64,
    bytes: &[u8],
    context: Context,
) -> Result<(), Errno> {
    let frames = frames_of(cpu, at, bytes).await;
    tree.write(cpu, file, ByteRange::new(at, bytes.len() as u64), frames, context).await
}

pub async fn read(cpu: &Processor, tree: &FileTree, file: &Vnode, at: u64, len: u64) -> Result<Vec<u8>, Errno> {
    let (range, frames) = tree.read(cpu, file, ByteRange::new(at, len), context()).await?;
    let mut bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes().iter().copied()).collect();
    bytes.drain(..(range.at.0 % 4096).min(bytes.len() as u64) as usize);
    bytes.truncate(range.len as usize);
    Ok(bytes)
}

/// Returns the new attributes.
pub async fn set_size(cpu: &Processor, tree: &Arc<FileTree>, node: Node, size: u64) -> Result<Attributes, Errno> {
    let attributes = SetAttributes { size: Some(size), ..SetAttributes::default() };
    match tree.call(cpu, None, TreeCall::SetAttributes { node, attributes, guard: None }).await? {
        TreeReply::Attributes(attributes) => Ok(attributes),
        _ => panic!("attributes are the answer"),
    }
}
