//! The Linux machines: one suite, run on both engines.

mod block;
mod control;
mod files;
mod forbidden;
mod mapping;
mod overlays;
mod parking;
mod rig;
mod sockets;
mod tree_at_once;
mod tree_births;
mod tree_content;
mod tree_contract;
mod tree_file_systems;
mod tree_handles;
mod tree_lanes;
mod tree_million;
mod tree_names;
mod tree_permissions;
mod tree_rig;
mod tree_search;
mod tree_space;
mod tree_unprivileged;
