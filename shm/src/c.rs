//! The calls of `awase-shm.h`, which has their contracts.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{NonNull, null_mut};

use crate::{Error, Mapping, OnServerLost, Options};

/// `AWASE_SHM_SIGBUS`.
const SIGBUS: c_int = 1;

fn open(socket: Option<&CStr>, volume: &CStr, flags: c_int) -> Result<Mapping, Error> {
    let options = socket.map_or_else(Options::default, |path| Options::at(OsStr::from_bytes(path.to_bytes())));
    let is_known = flags & !SIGBUS == 0;
    let volume = volume.to_str().ok().filter(|_| is_known);
    let volume = volume.ok_or_else(|| Error::Refused("a name that is not UTF-8, or unknown flags".into()))?;
    let on_lost = if flags & SIGBUS != 0 { OnServerLost::Signal } else { OnServerLost::Wait };
    options.on_server_lost(on_lost).open(volume)
}

/// # Safety
/// `socket` is null or a string, `volume` a string, `error` null or memory of `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn awase_shm_open(
    socket: *const c_char,
    volume: *const c_char,
    flags: c_int,
    error: *mut c_char,
    error_size: usize,
) -> *mut Mapping {
    // SAFETY: by the caller.
    let socket = (!socket.is_null()).then(|| unsafe { CStr::from_ptr(socket) });
    // SAFETY: by the caller.
    let volume = unsafe { CStr::from_ptr(volume) };
    match open(socket, volume, flags) {
        Ok(mapping) => Box::into_raw(Box::new(mapping)),
        Err(why) => {
            if !error.is_null() && error_size > 0 {
                let text = why.to_string();
                let len = text.len().min(error_size - 1);
                // SAFETY: by the caller there is room for `error_size` bytes, and `len` is less.
                unsafe {
                    error.copy_from_nonoverlapping(text.as_ptr().cast(), len);
                    error.add(len).write(0);
                }
            }
            null_mut()
        }
    }
}

/// # Safety
/// `mapping` is what [`awase_shm_open`] has returned, as in all calls here, and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn awase_shm_data(mapping: NonNull<Mapping>) -> *mut u8 {
    // SAFETY: by the caller.
    unsafe { mapping.as_ref() }.as_ptr().as_ptr()
}

/// # Safety
/// As [`awase_shm_data`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn awase_shm_size(mapping: NonNull<Mapping>) -> usize {
    // SAFETY: by the caller.
    unsafe { mapping.as_ref() }.len()
}

/// # Safety
/// As [`awase_shm_data`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn awase_shm_fence(mapping: NonNull<Mapping>) {
    // SAFETY: by the caller.
    unsafe { mapping.as_ref() }.fence();
}

/// # Safety
/// As [`awase_shm_data`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn awase_shm_flush(mapping: NonNull<Mapping>) -> c_int {
    // SAFETY: by the caller.
    match unsafe { mapping.as_ref() }.flush() {
        Ok(()) => 0,
        Err(Error::NotDurable(error)) => error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()),
        Err(_) => rustix::io::Errno::PIPE.raw_os_error(),
    }
}

/// # Safety
/// As [`awase_shm_data`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn awase_shm_losses(mapping: NonNull<Mapping>) -> u64 {
    // SAFETY: by the caller.
    unsafe { mapping.as_ref() }.losses()
}

/// # Safety
/// As [`awase_shm_data`]; nobody uses the mapping or its memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn awase_shm_close(mapping: *mut Mapping) {
    if !mapping.is_null() {
        // SAFETY: by the caller it came from a box, and is given back once.
        drop(unsafe { Box::from_raw(mapping) });
    }
}
