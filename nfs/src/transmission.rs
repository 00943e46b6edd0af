//! One connection: calls in, replies out.

use std::sync::Arc;

use kernel::Processor;
use machine::Connection;

use crate::call::ClientAddress;
use crate::server::Server;

/// Serves one client on this processor until it goes or the server ends, then closes the connection.
pub async fn serve(cpu: Processor, connection: Connection, _client: ClientAddress, _server: Arc<Server>) {
    cpu.close(connection);
}
