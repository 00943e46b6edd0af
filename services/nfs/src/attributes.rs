//! Attributes on the wire (RFC 1813, 2.5 and 2.6).

use machine::tree::{Attributes, DeviceNumber, Kind, SetAttributes, SetTime, Time};
use nfs3_types::nfs3::{Nfs3Option, fattr3, ftype3, nfsstat3, nfstime3, sattr3, set_atime, set_mtime, specdata3};

use crate::handle::ExportId;

/// Permission bits of a mode; clients cannot set others.
const MODE_BITS: u32 = 0o7777;

/// A node's attributes for clients. An export is one file system (`FSF3_HOMOGENEOUS`), so its id serves as `fsid`: the
/// host's number of the file system may change with a restart.
pub(crate) fn fattr(attributes: &Attributes, export: ExportId) -> fattr3 {
    fattr3 {
        type_: file_type(attributes.kind),
        mode: attributes.mode & MODE_BITS,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        used: attributes.used,
        rdev: device(attributes.kind),
        fsid: export.number(),
        fileid: attributes.number.0,
        atime: time(attributes.accessed),
        mtime: time(attributes.modified),
        ctime: time(attributes.changed),
    }
}

fn file_type(kind: Kind) -> ftype3 {
    match kind {
        Kind::File => ftype3::NF3REG,
        Kind::Directory => ftype3::NF3DIR,
        Kind::SymbolicLink => ftype3::NF3LNK,
        Kind::BlockDevice(_) => ftype3::NF3BLK,
        Kind::CharacterDevice(_) => ftype3::NF3CHR,
        Kind::Socket => ftype3::NF3SOCK,
        Kind::Fifo => ftype3::NF3FIFO,
    }
}

fn device(kind: Kind) -> specdata3 {
    match kind {
        Kind::BlockDevice(DeviceNumber { major, minor }) | Kind::CharacterDevice(DeviceNumber { major, minor }) => {
            specdata3 { specdata1: major, specdata2: minor }
        }
        _ => specdata3::default(),
    }
}

/// Times before 1970 and after 2106 become the nearest representable ones.
fn time(time: Time) -> nfstime3 {
    match u32::try_from(time.seconds) {
        Ok(seconds) => nfstime3 { seconds, nseconds: time.nanoseconds },
        Err(_) if time.seconds < 0 => nfstime3::default(),
        Err(_) => nfstime3 { seconds: u32::MAX, nseconds: 0 },
    }
}

/// # Errors
/// `NFS3ERR_INVAL`: a second of nanoseconds or more.
pub(crate) fn from_wire(time: nfstime3) -> Result<Time, nfsstat3> {
    if time.nseconds >= 1_000_000_000 {
        return Err(nfsstat3::NFS3ERR_INVAL);
    }
    Ok(Time { seconds: i64::from(time.seconds), nanoseconds: time.nseconds })
}

pub(crate) fn option<T: nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>(
    value: Nfs3Option<T>,
) -> Option<T> {
    match value {
        Nfs3Option::Some(value) => Some(value),
        Nfs3Option::None => None,
    }
}

///
/// # Errors
/// `NFS3ERR_INVAL`: an invalid time.
pub(crate) fn to_set(wire: sattr3) -> Result<SetAttributes, nfsstat3> {
    Ok(SetAttributes {
        mode: option(wire.mode).map(|mode| mode & MODE_BITS),
        uid: option(wire.uid),
        gid: option(wire.gid),
        size: option(wire.size),
        accessed: match wire.atime {
            set_atime::DONT_CHANGE => None,
            set_atime::SET_TO_SERVER_TIME => Some(SetTime::Now),
            set_atime::SET_TO_CLIENT_TIME(time) => Some(SetTime::To(from_wire(time)?)),
        },
        modified: match wire.mtime {
            set_mtime::DONT_CHANGE => None,
            set_mtime::SET_TO_SERVER_TIME => Some(SetTime::Now),
            set_mtime::SET_TO_CLIENT_TIME(time) => Some(SetTime::To(from_wire(time)?)),
        },
        drops_set_id: false,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_that_the_wire_cannot_say_become_the_nearest() {
        let wire = |seconds| time(Time { seconds, nanoseconds: 5 });
        assert_eq!(wire(-1), nfstime3 { seconds: 0, nseconds: 0 });
        assert_eq!(wire(0), nfstime3 { seconds: 0, nseconds: 5 });
        assert_eq!(wire(i64::from(u32::MAX)), nfstime3 { seconds: u32::MAX, nseconds: 5 });
        assert_eq!(wire(i64::from(u32::MAX) + 1), nfstime3 { seconds: u32::MAX, nseconds: 0 });
    }

    #[test]
    fn a_second_has_no_more_than_a_billion_nanoseconds() {
        assert_eq!(from_wire(nfstime3 { seconds: 1, nseconds: 1_000_000_000 }), Err(nfsstat3::NFS3ERR_INVAL));
        let wire = sattr3 {
            mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 1, nseconds: u32::MAX }),
            ..sattr3::default()
        };
        assert_eq!(to_set(wire), Err(nfsstat3::NFS3ERR_INVAL));
    }

    #[test]
    fn only_what_the_client_names_is_set() {
        assert_eq!(to_set(sattr3::default()), Ok(SetAttributes::default()));
        let wire = sattr3 {
            mode: Nfs3Option::Some(0o100_644),
            size: Nfs3Option::Some(0),
            atime: set_atime::SET_TO_SERVER_TIME,
            ..sattr3::default()
        };
        let expected = SetAttributes {
            mode: Some(0o644),
            size: Some(0),
            accessed: Some(SetTime::Now),
            ..SetAttributes::default()
        };
        assert_eq!(to_set(wire), Ok(expected));
    }

    proptest! {
        /// The guard of SETATTR is a time that the server returned.
        #[test]
        fn a_time_comes_back_as_it_was_given(seconds in 0..=i64::from(u32::MAX), nanoseconds in 0..1_000_000_000_u32) {
            let moment = Time { seconds, nanoseconds };
            prop_assert_eq!(from_wire(time(moment)), Ok(moment));
        }
    }
}
