//! Changing switches at run time.

use policy::cache::Algorithm;
use policy::color;

use super::Kernel;
use crate::queue::DiskQueue;
use crate::switches::{Reach, Switches};

impl Kernel {
    /// Changes the switches at run time. `change` gets the present ones. Each processor adopts the new ones at its next
    /// time slice. Clients' data never depends on them. Returns what the change does not affect.
    ///
    /// # Errors
    /// Those of `change`; then nothing has changed.
    pub fn change_switches<E>(&self, change: impl FnOnce(&mut Switches) -> Result<(), E>) -> Result<Vec<Reach>, E> {
        let live = &self.observed.switches;
        let _changing = live.begin_change();
        let old = live.current();
        let mut new = Switches::clone(&old);
        change(&mut new)?;
        let unreached = self.follow(&old, &mut new);
        live.publish(new.clone());
        // After publishing: a queue made meanwhile either has the new switches or is in this list.
        if (old.block_merge, old.priority, old.usage) != (new.block_merge, new.priority, new.usage) {
            let set = |queue: &DiskQueue| queue.set_switches(new.block_merge, new.priority, new.usage);
            self.served.disk_queues().iter().for_each(|(_, queue)| set(queue));
        }
        Ok(unreached)
    }

    /// Tells what was found of cache colours on this machine, which the switch `color` needs.
    pub fn on_colors_found(&self, found: color::Found) {
        let live = &self.observed.switches;
        let _changing = live.begin_change();
        self.memory.on_colors_found(found, live.current().color);
    }

    /// As [`Kernel::change_switches`], for all switches.
    pub fn set_switches(&self, new: Switches) -> Vec<Reach> {
        let set = |switches: &mut Switches| {
            *switches = new;
            Ok::<_, std::convert::Infallible>(())
        };
        match self.change_switches(set) {
            Ok(unreached) => unreached,
        }
    }

    /// Applies changes to parts that have copies of switches; others read them from their processor. Switches that
    /// cannot change are reset in `new`.
    fn follow(&self, old: &Switches, new: &mut Switches) -> Vec<Reach> {
        let mut unreached = Vec::new();
        if old.scan_resistant != new.scan_resistant {
            self.memory.cache().set_kind(if new.scan_resistant { Algorithm::S3Fifo } else { Algorithm::Lru });
        }
        if old.huge_pages != new.huge_pages {
            self.memory.page_choice().set_mode(new.huge_pages);
            unreached.push(Reach::Pages);
        }
        if old.registered_buffers != new.registered_buffers {
            self.memory.frames().set_register(new.registered_buffers);
            unreached.push(Reach::RegisteredMemory);
        }
        if old.color != new.color {
            self.memory.choose_colors(new.color);
        }
        if old.dynamic_cache != new.dynamic_cache {
            if self.memory.sizing().is_some() {
                self.memory.set_dynamic(new.dynamic_cache);
            } else {
                new.dynamic_cache = old.dynamic_cache;
                unreached.push(Reach::NoSizing);
            }
        }
        if old.trace != new.trace {
            self.observed.tracer.set_mode(new.trace);
            if self.observed.tracer.mode() != new.trace {
                new.trace = self.observed.tracer.mode();
                unreached.push(Reach::NoTraceMemory);
            }
        }
        unreached
    }
}
