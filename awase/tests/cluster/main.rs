//! Membership through etcd: against one in the test that misbehaves as it is told, and against Debian's.

mod clean;
mod fake;
mod faults;
mod forgotten;
mod node;
mod real;
mod started;
