//! The procedures of NFS (RFC 1813, chapter 3) and MOUNT (appendix I).

use crate::call::{Call, Results};

/// Does what a call asks for.
pub(crate) async fn perform(_call: Call) -> Results {
    Results::ProcedureUnavailable
}
