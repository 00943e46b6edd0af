//! What a program needs that has no operating system below it.

/// Before anything else in a call.
#[cfg(all(target_arch = "wasm32", feature = "std"))]
pub fn begin() {
    std::panic::set_hook(alloc::boxed::Box::new(|panic| {
        crate::sys::panic(&alloc::format!("{panic}"));
    }));
}

#[cfg(not(all(target_arch = "wasm32", feature = "std")))]
pub fn begin() {}

/// The allocator, in place of std's, which asks for more memory in each call; what has grown is not used again for the next.
#[cfg(target_arch = "wasm32")]
mod allocator {
    use core::alloc::{GlobalAlloc, Layout};
    use core::arch::wasm32::{memory_grow, memory_size};
    use core::cell::Cell;

    const PAGE_BYTES: usize = 64 << 10;

    unsafe extern "C" {
        /// The linker's name for the end of what it put into memory.
        static __heap_base: u8;
    }

    /// Hands out memory from the end of what is used. What was handed out last can be returned, or grow in its place; all
    /// else stays until the call ends, which is soon.
    struct Stack {
        /// The first free byte; 0 before the first use.
        free: Cell<usize>,
    }

    // SAFETY: a program has one thread.
    unsafe impl Sync for Stack {}

    #[global_allocator]
    static STACK: Stack = Stack { free: Cell::new(0) };

    impl Stack {
        /// Makes sure that memory up to `end` is there.
        fn reach(&self, end: usize) -> bool {
            let missing = end.saturating_sub(memory_size::<0>() * PAGE_BYTES);
            missing == 0 || memory_grow::<0>(missing.div_ceil(PAGE_BYTES)) != usize::MAX
        }
    }

    // SAFETY: blocks do not overlap: each begins at or after the end of those before it that were not returned.
    unsafe impl GlobalAlloc for Stack {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let free = match self.free.get() {
                0 => &raw const __heap_base as usize,
                free => free,
            };
            let Some(at) = free.checked_next_multiple_of(layout.align()) else { return core::ptr::null_mut() };
            match at.checked_add(layout.size()) {
                Some(end) if self.reach(end) => {
                    self.free.set(end);
                    at as *mut u8
                }
                _ => core::ptr::null_mut(),
            }
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            if at as usize + layout.size() == self.free.get() {
                self.free.set(at as usize);
            }
        }

        unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            let begin = at as usize;
            if begin + layout.size() == self.free.get() {
                let end = begin.saturating_add(size);
                if !self.reach(end) {
                    return core::ptr::null_mut();
                }
                self.free.set(end);
                return at;
            }
            // SAFETY: the size is not zero, and the alignment was right before.
            let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
            if !new.is_null() {
                // SAFETY: both blocks have this many bytes, and the new one does not overlap the old one.
                unsafe { core::ptr::copy_nonoverlapping(at, new, size.min(layout.size())) };
            }
            new
        }
    }

    #[cfg(not(feature = "std"))]
    #[panic_handler]
    fn panic(panic: &core::panic::PanicInfo<'_>) -> ! {
        crate::sys::panic(&alloc::format!("{panic}"))
    }
}
