//! What a file may hold after a crash, byte by byte.

/// Tells a server from what it was before it lost something.
pub type Verifier = [u8; 8];

/// A change that may not be durable.
#[derive(Clone, Debug)]
struct Write {
    at: u64,
    bytes: Vec<u8>,
    /// The verifier of its acknowledgement; `None` without one.
    verifier: Option<Verifier>,
}

impl Write {
    fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }
}

/// The content of a file that one client at a time writes.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// The durable content, under newer writes.
    durable: Vec<u8>,
    current: Vec<u8>,
    /// Written since, oldest first.
    since: Vec<Write>,
    /// Sizes that the file has had since, or may have had.
    sizes: Vec<u64>,
}

impl Content {
    pub fn durable(bytes: Vec<u8>) -> Self {
        Content { durable: bytes.clone(), current: bytes, ..Content::default() }
    }

    pub fn size(&self) -> u64 {
        self.current.len() as u64
    }

    /// What a read must return.
    pub fn expected(&self, at: u64, len: u64) -> &[u8] {
        let end = self.size().min(at.saturating_add(len));
        self.current.get(at as usize..end as usize).unwrap_or_default()
    }

    /// A write begins: from now on its bytes may appear.
    pub fn begin_write(&mut self, at: u64, bytes: &[u8]) {
        let end = at as usize + bytes.len();
        self.current.resize(self.current.len().max(end), 0);
        self.current[at as usize..end].copy_from_slice(bytes);
        self.since.push(Write { at, bytes: bytes.to_vec(), verifier: None });
        self.sizes.push(self.size());
    }

    pub fn acknowledge(&mut self, is_stable: bool, verifier: Verifier) {
        let last = self.since.len() - 1;
        self.since[last].verifier = Some(verifier);
        if is_stable {
            self.settle(last);
        }
    }

    /// A COMMIT that began after all acknowledgements has succeeded.
    pub fn committed(&mut self, verifier: Verifier) {
        let mut at = 0;
        while at < self.since.len() {
            if self.since[at].verifier == Some(verifier) { self.settle(at) } else { at += 1 }
        }
        if self.since.is_empty() && self.durable == self.current {
            self.sizes.clear();
        }
    }

    /// A part of what must be written again, since the server may have lost it.
    pub fn to_rewrite(&self, verifier: Verifier) -> Option<(u64, Vec<u8>)> {
        let is_lost = |write: &&Write| write.verifier != Some(verifier) && write.at < self.size();
        let lost = self.since.iter().find(is_lost)?;
        Some((lost.at, self.expected(lost.at, lost.bytes.len() as u64).to_vec()))
    }

    /// That part was acknowledged as stable.
    pub fn rewritten(&mut self, at: u64, len: u64) {
        self.since.retain(|write| write.at < at || write.end() > at + len);
    }

    /// The write `which` is durable: it hides older ones in its range.
    fn settle(&mut self, which: usize) {
        let Write { at, bytes, .. } = self.since.remove(which);
        let end = at + bytes.len() as u64;
        self.durable.resize(self.durable.len().max(end as usize), 0);
        self.durable[at as usize..end as usize].copy_from_slice(&bytes);
        for older in &mut self.since[..which] {
            let (from, to) = (older.at.max(at), older.end().min(end));
            if from < to {
                let part = &bytes[(from - at) as usize..(to - at) as usize];
                older.bytes[(from - older.at) as usize..(to - older.at) as usize].copy_from_slice(part);
            }
        }
        self.sizes.iter_mut().for_each(|size| *size = end.max(*size));
        self.sizes.push(self.size());
    }

    /// The size begins to change: from now on what is cut off may be zero when the file grows again.
    pub fn begin_resize(&mut self, size: u64) {
        self.sizes.push(size);
        let end = self.current.len().max(self.durable.len()) as u64;
        if size < end {
            self.since.push(Write { at: size, bytes: vec![0; (end - size) as usize], verifier: None });
        }
    }

    /// The size has changed, durably.
    pub fn resized(&mut self, size: u64) {
        self.current.resize(size as usize, 0);
        self.durable.resize(size as usize, 0);
        for write in &mut self.since {
            write.bytes.truncate(size.saturating_sub(write.at) as usize);
        }
        self.since.retain(|write| !write.bytes.is_empty());
        self.sizes = vec![size];
    }

    /// Is this content possible after a crash?
    pub fn check(&self, found: &[u8]) -> Result<(), String> {
        let least = self.sizes.iter().copied().min().unwrap_or(u64::MAX).min(self.durable.len() as u64);
        let most = self.sizes.iter().copied().max().unwrap_or(0).max(self.durable.len() as u64);
        if !(least..=most).contains(&(found.len() as u64)) {
            return Err(format!("{} bytes, not {least} to {most}", found.len()));
        }
        for (at, &byte) in found.iter().enumerate() {
            let was = self.durable.get(at).copied();
            let zero_allowed = was.is_none() || self.sizes.iter().any(|size| *size <= at as u64);
            let written = |write: &Write| {
                at.checked_sub(write.at as usize).and_then(|within| write.bytes.get(within)) == Some(&byte)
            };
            if was != Some(byte) && !(byte == 0 && zero_allowed) && !self.since.iter().any(written) {
                let since: Vec<_> = self.since.iter().map(|write| (write.at, write.end(), write.verifier)).collect();
                let found = &found[at..found.len().min(at + 8)];
                return Err(format!(
                    "byte {at} of {}: {found:02x?}; durable was {was:?}, sizes {:?}, written since {since:?}",
                    self.current.len(),
                    self.sizes
                ));
            }
        }
        Ok(())
    }

    /// The content read after an error: if it is possible, later reads must return it.
    pub fn look(&mut self, found: Vec<u8>) -> Result<(), String> {
        self.check(&found)?;
        self.sizes.push(found.len() as u64);
        self.current = found;
        Ok(())
    }
}
