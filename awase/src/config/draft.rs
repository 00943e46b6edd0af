//! An export as it is written, key by key, before it is known whether the keys make sense together.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kernel::device::{Faults, MechanicalModel};

use super::export::{Kind, SECTOR_BYTES, StableWrites};
use super::given::{Refusal, show_bytes, show_duration};
use super::key::{Entry, Key, apply};
use super::problem::{Place, Problem};

/// NBD protocol, "Values": strings are at most 4096 bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// Far below the end of `off_t`, so that no sum of offset and length wraps. 4 EiB.
const SIZE_MAX: u64 = 1 << 62;

/// What was written of one export.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// `name`.
    pub name: Option<String>,
    /// `description`.
    pub description: Option<String>,
    /// `kind`.
    pub kind: Option<Kind>,
    /// `path`.
    pub path: Option<PathBuf>,
    /// `size` in bytes.
    pub size: Option<u64>,
    /// `read_only`.
    pub read_only: Option<bool>,
    /// `block_size` in bytes.
    pub block_size: Option<u32>,
    /// `create`.
    pub create: Option<bool>,
    /// `stable_writes`.
    pub stable_writes: Option<StableWrites>,
    /// `latency`.
    pub latency: Option<Duration>,
    /// `model`.
    pub model: Option<MechanicalModel>,
    /// `delay`.
    pub delay: Option<Duration>,
    /// `faults.*`.
    pub faults: Faults,
    /// Where the export begins.
    pub place: Place,
    /// Was one of its keys not allowed?
    pub was_refused: bool,
    /// Where each key was written.
    places: BTreeMap<String, Place>,
}

impl Draft {
    /// Nothing written yet.
    pub fn at(place: Place) -> Draft {
        Draft { place, ..Draft::default() }
    }

    /// Takes one key.
    ///
    /// # Errors
    /// When there is no such key or its value is not allowed.
    pub fn take(&mut self, entry: &Entry) -> Result<(), Problem> {
        let shown = self.key(&entry.key);
        apply(EXPORT_KEYS, self, entry, &shown)?;
        self.places.insert(entry.key.clone(), entry.place.clone());
        Ok(())
    }

    /// A key of this export, in messages.
    pub fn key(&self, key: &str) -> String {
        match &self.name {
            Some(name) => format!("export {name:?} {key}"),
            None => format!("export {key}"),
        }
    }

    /// A problem with a key, at the line of the key if it was written.
    pub fn problem(&self, key: &str, what: impl Into<String>) -> Problem {
        Problem::new(self.places.get(key).unwrap_or(&self.place), self.key(key), what)
    }

    /// The problem that a key is missing.
    pub fn missing(&self, key: &str) -> Problem {
        self.problem(key, "is missing")
    }

    /// Finds keys that mean nothing for `kind`.
    pub fn refuse_what_does_not_belong(&self, kind: Kind) -> Result<(), Problem> {
        let in_memory_only = kind == Kind::Ram;
        let stray = [
            ("path", self.path.is_some() && in_memory_only),
            ("create", self.create.is_some() && (self.path.is_none() || matches!(kind, Kind::Ram | Kind::Block))),
            ("size", self.size.is_some() && kind == Kind::Block),
            ("latency", self.latency.is_some() && kind != Kind::TestDevice),
            ("model", self.model.is_some() && kind != Kind::Mechanical),
        ];
        match stray.into_iter().find(|(_, is_stray)| *is_stray) {
            Some(("create", _)) if self.path.is_none() && kind != Kind::Ram => {
                Err(self.missing("path").allowed("with create, the path of the file to make"))
            }
            Some((key, _)) => Err(self.problem(key, format!("does not go with kind = {:?}", kind.name()))),
            None => Ok(()),
        }
    }
}

fn short(text: &str) -> Result<String, Refusal> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Refusal::Because(format!("is {} bytes long, more than {TEXT_BYTES_MAX}", text.len())));
    }
    if text.contains('\0') {
        return Err(Refusal::Because("holds a zero byte".into()));
    }
    Ok(text.to_owned())
}

macro_rules! permille {
    ($name:literal, $field:ident, $about:literal) => {
        Key {
            name: $name,
            allowed: "a number from 0 to 1000",
            about: $about,
            paper: "",
            set: |draft, given| {
                draft.faults.$field = given.number(0..=1000)? as u16;
                Ok(())
            },
            show: |draft| Some(draft.faults.$field).filter(|n| *n > 0).map(|n| n.to_string()),
        }
    };
}

/// The keys of an export.
pub static EXPORT_KEYS: &[Key<Draft>] = &[
    Key {
        name: "name",
        allowed: "a text of 1 to 4096 bytes",
        about: "The name that clients ask for; required. The first export also answers to the empty name",
        paper: "",
        set: |draft, given| {
            draft.name = Some(short(given.filled_text()?)?);
            Ok(())
        },
        show: |draft| draft.name.as_ref().map(|name| quoted(name)),
    },
    Key {
        name: "description",
        allowed: "a text of at most 4096 bytes",
        about: "A line for people, shown by nbdinfo",
        paper: "",
        set: |draft, given| {
            draft.description = Some(short(given.text()?)?);
            Ok(())
        },
        show: |draft| draft.description.as_ref().map(|text| quoted(text)),
    },
    Key {
        name: "kind",
        allowed: "\"file\", \"block\", \"ram\", \"testdev\", \"mechanical\"",
        about: "What it is: an image file, a block device, memory, the papers' device of fixed latency, \
                or a modelled disk in real time; required",
        paper: "",
        set: |draft, given| {
            draft.kind = Some(Kind::named(given.text()?).ok_or(Refusal::NotAllowed)?);
            Ok(())
        },
        show: |draft| draft.kind.map(|kind| quoted(kind.name())),
    },
    Key {
        name: "path",
        allowed: "a path",
        about: "The file or device; testdev and mechanical keep their bytes in memory without it",
        paper: "",
        set: |draft, given| {
            draft.path = Some(given.filled_text()?.into());
            Ok(())
        },
        show: |draft| draft.path.as_ref().map(|path| quoted(&path.to_string_lossy())),
    },
    Key {
        name: "size",
        allowed: "a size such as \"1GiB\" that is a multiple of 512",
        about: "The size; for a file that exists it must be its size, and may be left out",
        paper: "",
        set: |draft, given| {
            let size = given.bytes(SECTOR_BYTES..=SIZE_MAX)?;
            if !size.is_multiple_of(SECTOR_BYTES) {
                return Err(Refusal::Because("is no multiple of 512".into()));
            }
            draft.size = Some(size);
            Ok(())
        },
        show: |draft| draft.size.map(|size| quoted(&show_bytes(size))),
    },
    Key {
        name: "read_only",
        allowed: "true, false",
        about: "Refuse changes (default false)",
        paper: "",
        set: |draft, given| {
            draft.read_only = Some(given.boolean()?);
            Ok(())
        },
        show: |draft| draft.read_only.map(|value| value.to_string()),
    },
    Key {
        name: "block_size",
        allowed: "1, 512, 4096",
        about: "The smallest unit that clients may transfer, in bytes (default 1: any)",
        paper: "",
        set: |draft, given| {
            draft.block_size = Some(match given.bytes(0..=u64::MAX)? {
                1 => 1,
                512 => 512,
                4096 => 4096,
                _ => return Err(Refusal::NotAllowed),
            });
            Ok(())
        },
        show: |draft| draft.block_size.map(|bytes| bytes.to_string()),
    },
    Key {
        name: "create",
        allowed: "true, false",
        about: "Make the file, sparse and of `size`, when it does not exist (default false)",
        paper: "",
        set: |draft, given| {
            draft.create = Some(given.boolean()?);
            Ok(())
        },
        show: |draft| draft.create.map(|value| value.to_string()),
    },
    Key {
        name: "stable_writes",
        allowed: "\"auto\", \"flush\", \"fua\"",
        about: "How writes that must be durable become so: by a write and a flush, by forced unit access, or whichever \
                was found to be cheaper at the start (default auto)",
        paper: "",
        set: |draft, given| {
            draft.stable_writes = Some(StableWrites::named(given.text()?).ok_or(Refusal::NotAllowed)?);
            Ok(())
        },
        show: |draft| draft.stable_writes.map(|way| quoted(way.name())),
    },
    Key {
        name: "latency",
        allowed: "a time from 0s to 60s such as \"17ms\"",
        about: "How long each operation of a testdev takes (default 17ms, as in the paper)",
        paper: "",
        set: |draft, given| {
            draft.latency = Some(given.duration(Duration::ZERO..=Duration::from_secs(60))?);
            Ok(())
        },
        show: |draft| draft.latency.map(|latency| quoted(&show_duration(latency))),
    },
    Key {
        name: "model",
        allowed: "\"scsi-1990\", \"mo-1990\"",
        about: "Which disk a mechanical export models (default scsi-1990)",
        paper: "",
        set: |draft, given| {
            draft.model = Some(MechanicalModel::named(given.text()?).ok_or(Refusal::NotAllowed)?);
            Ok(())
        },
        show: |draft| draft.model.as_ref().map(|model| quoted(model.name)),
    },
    Key {
        name: "delay",
        allowed: "a time from 0s to 60s such as \"5ms\"",
        about: "For tests: added to every operation of the medium",
        paper: "",
        set: |draft, given| {
            draft.delay = Some(given.duration(Duration::ZERO..=Duration::from_secs(60))?);
            Ok(())
        },
        show: |draft| draft.delay.map(|delay| quoted(&show_duration(delay))),
    },
    permille!("faults.read_permille", read_permille, "For tests: so many of 1000 reads of the medium fail"),
    permille!("faults.write_permille", write_permille, "For tests: so many of 1000 writes of the medium fail"),
    permille!("faults.flush_permille", flush_permille, "For tests: so many of 1000 flushes of the medium fail"),
    Key {
        name: "faults.seed",
        allowed: "a number",
        about: "For tests: which operations fail is decided by this",
        paper: "",
        set: |draft, given| {
            draft.faults.seed = given.number(0..=i64::MAX as u64)?;
            Ok(())
        },
        show: |draft| Some(draft.faults.seed).filter(|seed| *seed > 0).map(|seed| seed.to_string()),
    },
];

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// The draft that would make `export`, to be printed.
impl From<&super::export::Export> for Draft {
    fn from(export: &super::export::Export) -> Draft {
        use super::export::{Behaviour, Store};
        let mut draft = Draft {
            name: Some(export.name.clone()),
            description: Some(export.description.clone()).filter(|text| !text.is_empty()),
            kind: Some(export.kind),
            read_only: Some(export.read_only),
            block_size: Some(export.block_size),
            stable_writes: Some(export.stable_writes),
            delay: Some(export.delay).filter(|delay| !delay.is_zero()),
            faults: export.faults,
            place: export.place.clone(),
            ..Draft::default()
        };
        match &export.behaviour {
            Behaviour::Plain => {}
            Behaviour::FixedLatency(latency) => draft.latency = Some(*latency),
            Behaviour::Mechanical(model) => draft.model = Some(*model),
        }
        match &export.store {
            Store::File { path, size, create } => {
                draft.path = Some(path.clone());
                draft.size = *size;
                draft.create = create.then_some(true);
            }
            Store::Block { path } => draft.path = Some(path.clone()),
            Store::Ram { size } => draft.size = Some(*size),
        }
        draft
    }
}
