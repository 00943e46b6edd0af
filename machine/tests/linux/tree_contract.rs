//! What every tree promises, of trees of the host.

macro_rules! of_the_host {
    ($suite:ident: $($name:ident),+) => {
        mod $suite {
            use crate::tree_rig::{ServedTree, on_all_trees};
            use testkit::contract::{Tree, $suite};

            $(fn $name(served: ServedTree) {
                if !$suite::NEED_OTHERS || served.acts_for_others() {
                    $suite::$name(served);
                }
            })+
            on_all_trees!($($name),+);
        }
    };
}

testkit::promises_of_handles!(of_the_host);
testkit::promises_of_listing!(of_the_host);
testkit::promises_of_names!(of_the_host);
testkit::promises_of_permissions!(of_the_host);
