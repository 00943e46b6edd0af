//! Guarantees of the choice of the processor that starts a device.

use policy::access::{Access, Mode};
use policy::unit::ProcessorId;
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_funnel_has_one_end_and_symmetric_requests_do_not_migrate(master in 0u16..64, initiator in 0u16..64) {
        let (master, initiator) = (ProcessorId(master), ProcessorId(initiator));
        let funnel = Access::new(Mode::Funnel, master);
        prop_assert_eq!((funnel.starts(initiator), funnel.only()), (master, Some(master)));
        let symmetric = Access::new(Mode::Symmetric, master);
        prop_assert_eq!((symmetric.starts(initiator), symmetric.only()), (initiator, None));
    }
}

#[test]
fn access_is_symmetric_by_default() {
    assert_eq!(Mode::default(), Mode::Symmetric);
}
