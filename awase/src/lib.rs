//! Awase's command line: configuration, the server's front end, and its tools. The I/O path is in the crates below; this
//! one chooses the machine that they run on.

pub mod accepting;
pub mod banner;
pub mod check;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod control;
pub mod databases;
pub mod directories;
pub mod exports;
pub mod generate;
pub mod guard;
pub mod host_memory;
pub mod iotest;
pub mod lab;
pub mod listeners;
pub mod load;
pub mod media;
pub mod membership;
pub mod metrics;
pub mod mount;
pub mod open_files;
pub mod overlaid;
pub mod predecessor;
pub mod processors;
pub mod program;
pub mod programs;
pub mod registration;
pub mod secret;
pub mod serve;
pub mod server;
pub mod stable_writes;
pub mod stack;
pub mod top;
pub mod trace;
