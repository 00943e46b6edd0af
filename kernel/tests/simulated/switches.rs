//! The switches of a running kernel: when a change takes effect, and what it does not affect.

use kernel::trace::{Mode, Tracer, private_memory};
use kernel::{Kernel, KernelConfig, Reach, Switches};
use policy::sizing::{self, MemoryFacts};
use sim::World;
use std::sync::Arc;
use std::time::Duration;
use testkit::scene::{Host, boot, run, small_kernel};

const MIB: u64 = 1 << 20;

#[test]
fn a_processor_sees_changed_switches_at_its_next_turn_and_not_before() {
    let (world, host) = boot(1, small_kernel(1, 4 * MIB, Switches::default()));
    let seen = run(&world, &host, async move |cpu| {
        let unreached = cpu.kernel().set_switches(Switches { priority: false, ..(*cpu.switches()).clone() });
        assert_eq!(unreached, []);
        let in_this_turn = cpu.switches().priority;
        cpu.sleep(Duration::from_nanos(1)).await;
        (in_this_turn, cpu.switches().priority)
    });
    assert_eq!(seen, (true, false));
    host.die();
}

#[test]
fn a_change_says_what_it_does_not_reach() {
    let kernel = Kernel::new(small_kernel(1, 4 * MIB, Switches::default())).expect("address space");
    let before = (*kernel.switches()).clone();
    assert_eq!(before.trace, Mode::Off, "nothing can be traced without memory for it");
    let new = Switches {
        dynamic_cache: !before.dynamic_cache,
        registered_buffers: !before.registered_buffers,
        trace: Mode::Direct,
        ..before.clone()
    };
    let unreached = kernel.set_switches(new.clone());
    assert_eq!(unreached, [Reach::RegisteredMemory, Reach::NoSizing, Reach::NoTraceMemory]);
    let truth = Switches { dynamic_cache: before.dynamic_cache, trace: Mode::Off, ..new };
    assert_eq!(*kernel.switches(), truth, "what did not change is not shown as changed");
}

#[test]
fn tracing_is_turned_on_and_off_while_running_where_there_is_memory_for_it() {
    let tracer = Arc::new(Tracer::new(Mode::Off, 1, private_memory(1 << 14), 0));
    let kernel = Kernel::traced(small_kernel(1, 4 * MIB, Switches::default()), tracer).expect("address space");
    for mode in Mode::ALL {
        assert_eq!(kernel.set_switches(Switches { trace: mode, ..(*kernel.switches()).clone() }), []);
        assert_eq!((kernel.tracer().mode(), kernel.switches().trace), (mode, mode));
    }
}

#[test]
fn a_cache_becomes_fixed_and_dynamic_again_while_running() {
    let world = World::new(1);
    let id = world.add_host("server");
    let total = 256 * MIB;
    world.set_memory(id, MemoryFacts { total, available: total, group: None });
    let sizing =
        sizing::Config { fixed_bytes: 2 * MIB, step_bytes: MIB, floor_bytes: MIB, ..sizing::Config::default() };
    let config = small_kernel(1, 32 * MIB, Switches::default());
    let host = Host::boot(&world, id, KernelConfig { sizing: Some(sizing), ..config });
    let sizes = run(&world, &host, async move |cpu| {
        let kernel = Arc::clone(cpu.kernel());
        let mut sizes = Vec::new();
        for dynamic_cache in [true, false, true] {
            kernel.set_switches(Switches { dynamic_cache, ..(*kernel.switches()).clone() });
            cpu.sleep(Duration::from_secs(3)).await;
            sizes.push(kernel.cache_blocks() * 4096);
        }
        sizes
    });
    assert!(sizes[0] > 2 * MIB && sizes[2] > 2 * MIB, "{sizes:?}");
    assert_eq!(sizes[1], 2 * MIB);
    host.die();
}
