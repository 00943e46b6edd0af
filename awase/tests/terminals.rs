//! Databases with PostgreSQL's own clients and drivers, and with clients that mean harm.

#[path = "terminals/bank.rs"]
mod bank;
#[path = "terminals/client.rs"]
mod client;
#[path = "terminals/connecting.rs"]
mod connecting;
#[path = "terminals/drivers.rs"]
mod drivers;
#[path = "terminals/hostile.rs"]
mod hostile;
#[path = "terminals/load.rs"]
mod load;
#[path = "terminals/programs.rs"]
mod programs;
#[path = "terminals/psql.rs"]
mod psql;
#[path = "terminals/shared.rs"]
mod shared;
#[path = "terminals/techniques.rs"]
mod techniques;
