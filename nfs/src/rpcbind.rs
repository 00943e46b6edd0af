//! Telling the host's rpcbind where the service is (RFC 1833, version 2).
