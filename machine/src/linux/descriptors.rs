//! Descriptors that come and go with bytes, through Unix sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::perform::message;

/// Receives bytes and up to `most` descriptors that come with them, through a Unix socket.
///
/// # Errors
/// The host's.
pub fn receive_with_descriptors(socket: &impl AsFd, into: &mut [u8], most: usize) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = vec![0_u64; most * 2 + 4];
    let mut parcel = message(&[]);
    let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    parcel.msg_iov = &raw mut vector;
    parcel.msg_iovlen = 1;
    parcel.msg_control = space.as_mut_ptr().cast();
    // SAFETY: only a number is computed.
    parcel.msg_controllen = unsafe { libc::CMSG_SPACE((most * size_of::<RawFd>()) as u32) } as _;
    // SAFETY: the message holds one vector, which is `into`, and control space of the given length.
    let count = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut parcel, libc::MSG_CMSG_CLOEXEC) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let mut descriptors = Vec::new();
    // SAFETY: the host wrote the control data, whose headers and lengths these macros follow within its length; every
    // descriptor in it is new and nobody else's.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const parcel);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const parcel, header);
        }
    }
    Ok((count, descriptors))
}

/// Sends bytes and a descriptor with them, through a Unix socket.
///
/// # Errors
/// The host's; also when not all bytes could be sent at once.
pub fn send_with_descriptor(socket: &impl AsFd, bytes: &[u8], descriptor: &impl AsFd) -> io::Result<()> {
    let mut space = [0_u64; 4];
    let mut parcel = message(&[]);
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    parcel.msg_iov = &raw mut vector;
    parcel.msg_iovlen = 1;
    parcel.msg_control = space.as_mut_ptr().cast();
    // SAFETY: only numbers are computed; the space holds one header and one descriptor.
    let count = unsafe {
        parcel.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const parcel);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor.as_fd().as_raw_fd());
        libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const parcel, libc::MSG_NOSIGNAL)
    };
    match usize::try_from(count) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
