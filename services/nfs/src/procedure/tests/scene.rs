//! A server in a simulated world, and clients that call its procedures.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use kernel::queue::DiskQueue;
use kernel::request::JobId;
use kernel::tree::{FileTree, FileTreeConfig, OpenFiles};
use kernel::{FRAME_BYTES, ForcedUnitAccess, Frames, Processor, Switches};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use sim::{HostId, TreeConfig, TreeId, World};

use crate::call::{Call, Results};
use crate::client::{ClientAddress, Credentials};
use crate::export::{Export, ExportConfig, Names};
use crate::nfs::{Limits, Nfs};
use crate::procedure::perform;
use crate::program::Program;
use crate::replay::ReplayLimits;
use crate::shape::Payload;
use crate::shape::{Look, WriteArguments};
use testkit::scene::{Host, run, small_kernel};

const KEY: [u8; 32] = [7; 32];

/// Of all replies that are remembered. Bytes.
const REPLIES_BYTES: usize = 64 << 10;

/// More calls than replies that are remembered.
pub(super) const MANY: usize = REPLIES_BYTES / 256;

/// A server of the exports `/files` and `/other`, each a tree of its own.
pub(super) struct Scene {
    pub(super) world: World,
    server: RefCell<Server>,
    pub(super) trees: [TreeId; 2],
    /// The id of the next call.
    pub(super) xid: Cell<u32>,
}

/// The server until the power fails.
struct Server {
    host: Host,
    nfs: Arc<Nfs>,
}

impl Server {
    /// With this configuration of `/files`.
    fn boot(world: &World, id: HostId, trees: [TreeId; 2], config: ExportConfig) -> Self {
        let switches = Switches { huge_pages: policy::pages::Mode::Small, ..Switches::default() };
        let host = Host::boot(world, id, small_kernel(1, 16 << 20, switches));
        let nfs = serve(world, &host, trees, config);
        Server { host, nfs }
    }
}

/// User 1000 of a server, and the root of `/files`.
pub(super) fn user() -> (Client, nfs_fh3) {
    let user = Scene::new(0).user(1000);
    let root = user.root();
    (user, root)
}

impl Scene {
    pub(super) fn new(seed: u64) -> Rc<Self> {
        Scene::with(seed, ExportConfig::default())
    }

    /// With this configuration of `/files`.
    pub(super) fn with(seed: u64, config: ExportConfig) -> Rc<Self> {
        let world = World::new(seed);
        let id = world.add_host("server");
        let tree = TreeConfig { journal: config.names == Names::Ordered, ..TreeConfig::new() };
        let trees = [(); 2].map(|()| world.add_tree(id, tree.clone()));
        let server = RefCell::new(Server::boot(&world, id, trees, config));
        // All users may create entries in the root directories.
        let scene = Scene { world, server, trees, xid: Cell::new(1) };
        for tree in trees {
            scene.chmod_in(tree, "", 0o777);
        }
        Rc::new(scene)
    }

    pub(super) fn nfs(&self) -> Arc<Nfs> {
        Arc::clone(&self.server.borrow().nfs)
    }

    fn host(&self) -> Ref<'_, Host> {
        Ref::map(self.server.borrow(), |server| &server.host)
    }

    /// As a process of the host, in the first tree.
    pub(super) fn chmod_beside(&self, path: &str, mode: u32) {
        self.chmod_in(self.trees[0], path, mode);
    }

    fn chmod_in(&self, tree: TreeId, path: &str, mode: u32) {
        use machine::tree::{SetAttributes, TreeCall};
        let node = self.world.tree_node(tree, path).expect("it exists");
        let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        let call = TreeCall::SetAttributes { node, attributes, guard: None };
        self.world.call_tree(tree, None, &call).expect("set");
    }

    /// Changes the configuration of `/files`.
    pub(super) fn change_export(&self, config: ExportConfig) {
        let exports = self.nfs().exports();
        let tree = Arc::clone(exports[0].tree());
        let config = ExportConfig { name: "/files".to_owned(), ..config };
        self.nfs().set_exports(vec![Export::new(config, tree), Arc::clone(&exports[1])]);
    }

    /// A power failure: what was not durable may be lost.
    pub(super) fn power_cut(&self) {
        let id = self.host().id;
        self.world.power_cut(id);
        let server = Server::boot(&self.world, id, self.trees, ExportConfig::default());
        self.server.replace(server).host.die();
    }

    pub(super) fn user(self: &Rc<Self>, uid: u32) -> Client {
        let credentials = Credentials::Unix { uid, gid: uid, groups: [].into_iter().collect() };
        self.client("192.0.2.1", credentials)
    }

    pub(super) fn client(self: &Rc<Self>, address: &str, credentials: Credentials) -> Client {
        let address = (address.parse::<std::net::IpAddr>().expect("an address"), 1000);
        self.client_at(ClientAddress::Ip(address.into()), credentials)
    }

    pub(super) fn client_at(self: &Rc<Self>, address: ClientAddress, credentials: Credentials) -> Client {
        Client { scene: Rc::clone(self), address, credentials, connection: Cell::new(1) }
    }
}

fn serve(world: &World, host: &Host, trees: [TreeId; 2], config: ExportConfig) -> Arc<Nfs> {
    let give_out = |name: &str, tree: TreeId, config: ExportConfig| {
        let queue = Arc::new(DiskQueue::new(policy::queue::Config::default()));
        let tree_config = FileTreeConfig {
            name: name.to_owned(),
            read_only: false,
            open_files: OpenFiles::new(16),
            forced_unit_access: ForcedUnitAccess::Alone,
            queue,
        };
        let tree = FileTree::new(&host.processors[0], world.open_tree(tree), tree_config);
        Export::new(ExportConfig { name: name.to_owned(), ..config }, tree)
    };
    let exports = vec![give_out("/files", trees[0], config), give_out("/other", trees[1], ExportConfig::default())];
    let replay = ReplayLimits { bytes: REPLIES_BYTES, ..ReplayLimits::default() };
    Nfs::new(KEY, Limits { replay, ..Limits::default() }, exports)
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Came {
    Bytes(Vec<u8>),
    Garbage,
    Unavailable,
    AuthError,
    Silence,
}

/// The data of a WRITE, and its offset.
pub(super) struct Data<'a> {
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
}

pub(super) struct Client {
    pub(super) scene: Rc<Scene>,
    address: ClientAddress,
    credentials: Credentials,
    pub(super) connection: Cell<u64>,
}

impl Client {
    /// A call with a new id.
    pub(super) fn prepare(
        &self,
        program: Program,
        procedure: u32,
        arguments: Vec<u8>,
    ) -> impl Fn(Processor) -> Call + use<> {
        let (nfs, client, credentials) = (self.scene.nfs(), self.address, self.credentials.clone());
        let (xid, connection) = (self.scene.xid.replace(self.scene.xid.get() + 1), self.connection.get());
        move |cpu| Call {
            cpu,
            nfs: Arc::clone(&nfs),
            client,
            connection: kernel::connection::ConnectionNo(connection),
            credentials: credentials.clone(),
            program,
            procedure,
            xid,
            arguments: arguments.clone(),
            payload: None,
            job: JobId::default(),
            last_handle: Rc::default(),
        }
    }

    /// Calls with raw arguments.
    pub(super) fn call_raw(&self, program: Program, procedure: u32, arguments: Vec<u8>) -> Came {
        let call = self.prepare(program, procedure, arguments);
        run(&self.scene.world, &self.scene.host(), async move |cpu| came(perform(&mut call(cpu)).await))
    }

    /// Calls a procedure of NFS that replies.
    pub(super) fn call<T, E>(&self, procedure: NFS_PROGRAM, args: &impl Pack) -> Result<T, nfsstat3>
    where
        Nfs3Result<T, E>: Unpack,
    {
        decode(self.call_raw(Program::Nfs, procedure as u32, bytes(args)))
    }

    /// Writes `data` with any other arguments.
    pub(super) fn write_with(
        &self,
        file: &nfs_fh3,
        count: u32,
        stable: stable_how,
        data: &Data<'_>,
    ) -> Result<WRITE3resok, nfsstat3> {
        let mut arguments = bytes(file);
        arguments.extend(bytes(&data.offset).into_iter().chain(bytes(&count)).chain(bytes(&stable)));
        let call = self.prepare(Program::Nfs, NFS_PROGRAM::NFSPROC3_WRITE as u32, arguments);
        let (skip, content) = ((data.offset % FRAME_BYTES as u64) as usize, data.bytes.to_vec());
        let came = run(&self.scene.world, &self.scene.host(), async move |cpu| {
            let frames = fill(&cpu, skip, &content).await;
            let call = call(cpu);
            let arguments = [&call.arguments[..], &(content.len() as u32).to_be_bytes()].concat();
            let Look::Known(write) = WriteArguments::look(&arguments) else { panic!("arguments of a WRITE") };
            came(perform(&mut Call { payload: Some(Payload { write, frames }), ..call }).await)
        });
        decode::<WRITE3resok, WRITE3resfail>(came)
    }

    pub(super) fn write(
        &self,
        file: &nfs_fh3,
        offset: u64,
        bytes: &[u8],
        stable: stable_how,
    ) -> Result<WRITE3resok, nfsstat3> {
        self.write_with(file, bytes.len() as u32, stable, &Data { offset, bytes })
    }

    /// The data read, and `eof`.
    pub(super) fn read(&self, file: &nfs_fh3, offset: u64, count: u32) -> Result<(Vec<u8>, bool), nfsstat3> {
        let args = READ3args { file: file.clone(), offset, count };
        let read: READ3resok<'static> = self.call::<_, READ3resfail>(NFS_PROGRAM::NFSPROC3_READ, &args)?;
        assert_eq!(read.count as usize, read.data.len());
        Ok((read.data.into_owned(), read.eof))
    }

    pub(super) fn commit(&self, file: &nfs_fh3) -> Result<COMMIT3resok, nfsstat3> {
        let args = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
        self.call::<_, COMMIT3resfail>(NFS_PROGRAM::NFSPROC3_COMMIT, &args)
    }

    pub(super) fn getattr(&self, object: &nfs_fh3) -> Result<fattr3, nfsstat3> {
        let args = GETATTR3args { object: object.clone() };
        let attributes =
            self.call::<GETATTR3resok, nfs3_types::xdr_codec::Void>(NFS_PROGRAM::NFSPROC3_GETATTR, &args)?;
        Ok(attributes.obj_attributes)
    }

    pub(super) fn setattr(
        &self,
        object: &nfs_fh3,
        new_attributes: sattr3,
        guard: Option<nfstime3>,
    ) -> Result<(), nfsstat3> {
        let guard = guard.map_or(Nfs3Option::None, Nfs3Option::Some);
        let args = SETATTR3args { object: object.clone(), new_attributes, guard };
        self.call::<SETATTR3resok, SETATTR3resfail>(NFS_PROGRAM::NFSPROC3_SETATTR, &args).map(drop)
    }

    pub(super) fn access(&self, object: &nfs_fh3, access: u32) -> Result<u32, nfsstat3> {
        Ok(self.access_and_attributes(object, access)?.0)
    }

    pub(super) fn access_and_attributes(&self, object: &nfs_fh3, access: u32) -> Result<(u32, fattr3), nfsstat3> {
        let args = ACCESS3args { object: object.clone(), access };
        let answer = self.call::<ACCESS3resok, ACCESS3resfail>(NFS_PROGRAM::NFSPROC3_ACCESS, &args)?;
        Ok((answer.access, answer.obj_attributes.unwrap()))
    }

    pub(super) fn lookup(&self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        let args = LOOKUP3args { what: place(dir, name) };
        self.call::<LOOKUP3resok, LOOKUP3resfail>(NFS_PROGRAM::NFSPROC3_LOOKUP, &args).map(|found| found.object)
    }

    pub(super) fn create_how(&self, dir: &nfs_fh3, name: &str, how: createhow3) -> Result<nfs_fh3, nfsstat3> {
        let args = CREATE3args { where_: place(dir, name), how };
        self.call::<CREATE3resok, CREATE3resfail>(NFS_PROGRAM::NFSPROC3_CREATE, &args).map(|made| made.obj.unwrap())
    }

    pub(super) fn create(&self, dir: &nfs_fh3, name: &str, mode: u32) -> Result<nfs_fh3, nfsstat3> {
        self.create_how(dir, name, createhow3::GUARDED(with_mode(mode)))
    }

    pub(super) fn mkdir(&self, dir: &nfs_fh3, name: &str, mode: u32) -> Result<nfs_fh3, nfsstat3> {
        let args = MKDIR3args { where_: place(dir, name), attributes: with_mode(mode) };
        self.call::<MKDIR3resok, MKDIR3resfail>(NFS_PROGRAM::NFSPROC3_MKDIR, &args).map(|made| made.obj.unwrap())
    }

    pub(super) fn symlink(&self, dir: &nfs_fh3, name: &str, target: &str) -> Result<nfs_fh3, nfsstat3> {
        let symlink_data = nfspath3::from(target.as_bytes());
        let symlink = symlinkdata3 { symlink_attributes: with_mode(0o777), symlink_data };
        let args = SYMLINK3args { where_: place(dir, name), symlink };
        self.call::<SYMLINK3resok, SYMLINK3resfail>(NFS_PROGRAM::NFSPROC3_SYMLINK, &args).map(|made| made.obj.unwrap())
    }

    pub(super) fn mknod(&self, dir: &nfs_fh3, name: &str, what: mknoddata3) -> Result<nfs_fh3, nfsstat3> {
        let args = MKNOD3args { where_: place(dir, name), what };
        self.call::<MKNOD3resok, MKNOD3resfail>(NFS_PROGRAM::NFSPROC3_MKNOD, &args).map(|made| made.obj.unwrap())
    }

    pub(super) fn remove(&self, dir: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
        let args = REMOVE3args { object: place(dir, name) };
        self.call::<REMOVE3resok, REMOVE3resfail>(NFS_PROGRAM::NFSPROC3_REMOVE, &args).map(drop)
    }

    pub(super) fn rmdir(&self, dir: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
        let args = RMDIR3args { object: place(dir, name) };
        self.call::<RMDIR3resok, RMDIR3resfail>(NFS_PROGRAM::NFSPROC3_RMDIR, &args).map(drop)
    }

    pub(super) fn rename(&self, from: (&nfs_fh3, &str), to: (&nfs_fh3, &str)) -> Result<(), nfsstat3> {
        let args = RENAME3args { from: place(from.0, from.1), to: place(to.0, to.1) };
        self.call::<RENAME3resok, RENAME3resfail>(NFS_PROGRAM::NFSPROC3_RENAME, &args).map(drop)
    }

    pub(super) fn link(&self, file: &nfs_fh3, dir: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
        let args = LINK3args { file: file.clone(), link: place(dir, name) };
        self.call::<LINK3resok, LINK3resfail>(NFS_PROGRAM::NFSPROC3_LINK, &args).map(drop)
    }

    pub(super) fn root(&self) -> nfs_fh3 {
        self.root_of(0)
    }

    pub(super) fn root_of(&self, which: usize) -> nfs_fh3 {
        let node = self.scene.world.tree_node(self.scene.trees[which], "").expect("a root");
        let handle = self.scene.nfs().exports()[which].handle(self.scene.nfs().key(), node);
        nfs_fh3 { data: Opaque::owned(handle) }
    }
}

pub(super) fn with_mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

pub(super) fn place<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: dir.clone(), name: filename3::from(name.as_bytes()) }
}

pub(super) fn bytes(args: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    args.pack(&mut bytes).expect("fits");
    bytes
}

/// Decodes a reply, completely.
pub(super) fn decode<T, E>(came: Came) -> Result<T, nfsstat3>
where
    Nfs3Result<T, E>: Unpack,
{
    let Came::Bytes(bytes) = came else { panic!("no reply but {came:?}") };
    let (result, len) = Nfs3Result::<T, E>::unpack(&mut &bytes[..]).expect("decodes");
    assert_eq!(len, bytes.len(), "something is left over");
    match result {
        Nfs3Result::Ok(value) => Ok(value),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

/// The results as the wire sends them.
pub(super) fn came(results: Results) -> Came {
    match results {
        Results::Bytes(bytes) => Came::Bytes(bytes),
        Results::Data { mut head, frames, skip, len } => {
            let content = frames.iter().flat_map(|frame| frame.bytes().to_vec());
            head.extend(content.skip(skip).take(len));
            head.resize(head.len().next_multiple_of(4), 0);
            Came::Bytes(head)
        }
        Results::GarbageArguments => Came::Garbage,
        Results::ProcedureUnavailable => Came::Unavailable,
        Results::AuthError(_) => Came::AuthError,
        Results::SystemError => panic!("the server cannot"),
        Results::Silence => Came::Silence,
    }
}

/// Frames with `content` from their `skip`-th byte.
async fn fill(cpu: &Processor, skip: usize, content: &[u8]) -> Frames {
    let blocks = if content.is_empty() { 0 } else { (skip + content.len()).div_ceil(FRAME_BYTES) };
    let mut frames = cpu.kernel().allocate(cpu, blocks).await;
    let mut at = skip;
    let mut rest = content;
    for frame in &mut frames {
        let (now, later) = rest.split_at(rest.len().min(FRAME_BYTES - at));
        frame.bytes_mut().expect("nobody else has it")[at..at + now.len()].copy_from_slice(now);
        (rest, at) = (later, 0);
    }
    frames
}

/// Concurrent calls; returns their outcomes.
pub(super) fn together(scene: &Scene, calls: Vec<impl Fn(Processor) -> Call + 'static>) -> Vec<Came> {
    run(&scene.world, &scene.host(), async move |cpu| {
        let calls: Rc<[_]> = calls.into();
        futures_util::future::join_all((0..calls.len()).map(|which| {
            let (calls, cpu) = (Rc::clone(&calls), cpu.clone());
            async move { came(perform(&mut calls[which](cpu)).await) }
        }))
        .await
    })
}
