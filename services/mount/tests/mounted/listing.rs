//! Directories whose server does not lead through them from the beginning to the end.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use machine::Errno;
use mount::{Files, Listed, NodeId, Sink};

use crate::made_up::{GETATTR, LOOKUP, READDIRPLUS, after_opaque, attributes, opaque};
use crate::scene::Scene;

/// Statuses (RFC 1813, section 2.6).
const NOENT: u32 = 2;
const BAD_COOKIE: u32 = 10_003;

const LOOP: Errno = Errno(libc::ELOOP);

/// A reply to READDIRPLUS: an entry's name, which is a letter, and its cookie. Of capitals the server says no more than it must,
/// and they are gone when they are looked up.
enum Part {
    More(&'static [(char, u64)]),
    End(&'static [(char, u64)]),
    BadCookie,
}

impl Part {
    fn results(&self) -> Vec<u8> {
        let (entries, is_end) = match *self {
            Part::More(entries) => (entries, 0),
            Part::End(entries) => (entries, 1),
            Part::BadCookie => return refused(BAD_COOKIE),
        };
        // OK, no attributes, and a verifier: cookies may be taken back.
        let mut results = [[0; 8], [1; 8]].concat();
        entries.iter().for_each(|(name, cookie)| results.extend(entry(*name, *cookie)));
        results.extend([0, is_end].map(u32::to_be_bytes).concat());
        results
    }
}

/// And nothing about the objects.
fn refused(status: u32) -> Vec<u8> {
    [&status.to_be_bytes()[..], &[0; 8]].concat()
}

fn entry(name: char, cookie: u64) -> Vec<u8> {
    let (number, is_there, text) = (1000 + u64::from(name), 1u32.to_be_bytes(), opaque(name.to_string().as_bytes()));
    let named = [&is_there[..], &number.to_be_bytes(), &text, &cookie.to_be_bytes()].concat();
    if name.is_uppercase() {
        return [&named[..], &[0; 8]].concat();
    }
    let object = [&is_there[..], &attributes(number), &is_there, &opaque(&number.to_be_bytes())].concat();
    [named, object].concat()
}

/// Mounts a server that answers READDIRPLUS at a cookie, with the number of such calls before, as `part` says.
fn mount(scene: &mut Scene, part: impl Fn(u64, usize) -> Vec<u8> + 'static) -> (Arc<Files>, Rc<Cell<usize>>) {
    let files = scene.mount();
    let calls = Rc::new(Cell::new(0));
    let own = Rc::clone(&calls);
    scene.make_up(move |procedure, arguments| match procedure {
        READDIRPLUS => {
            let cookie = after_opaque(arguments).first_chunk().expect("a cookie");
            part(u64::from_be_bytes(*cookie), own.replace(own.get() + 1))
        }
        LOOKUP => refused(NOENT),
        GETATTR => [vec![0; 4], attributes(1)].concat(),
        _ => panic!("procedure {procedure} is not asked for"),
    });
    (files, calls)
}

#[derive(Default)]
struct Names {
    names: String,
    cookie: u64,
    is_abandoned: Rc<Cell<bool>>,
}

impl Sink for Names {
    fn add(&mut self, entry: &Listed<'_>) -> bool {
        self.names.extend(std::str::from_utf8(entry.name));
        self.cookie = entry.cookie;
        true
    }

    fn is_abandoned(&self) -> bool {
        self.is_abandoned.get()
    }
}

/// The names up to the end or an error, as a host asks for them.
async fn list(cpu: &Processor, files: &Arc<Files>) -> (String, Result<(), Errno>) {
    let stream = files.open_directory(NodeId::ROOT).expect("opened");
    let mut all = String::new();
    let mut cookie = 0;
    let result = loop {
        let mut some = Names::default();
        let result = files.list(cpu, stream, cookie, true, &mut some).await;
        if result.is_err() || some.names.is_empty() {
            break result;
        }
        cookie = some.cookie;
        all += &some.names;
        assert!(all.len() < 1000, "it never ends: {all}");
    };
    files.close_directory(stream);
    (all, result)
}

/// What such a server's directory is listed as.
fn listed(part: impl Fn(u64, usize) -> Part + 'static) -> (String, Result<(), Errno>) {
    let mut scene = Scene::new(1);
    let (files, _) = mount(&mut scene, move |cookie, calls| part(cookie, calls).results());
    scene.run(async move |cpu| list(&cpu, &files).await)
}

#[test]
fn a_listing_that_leads_to_what_was_listed_already_fails() {
    use Part::{BadCookie, End, More};
    let fails = |names: &str| (names.to_owned(), Err(LOOP));
    // After a cookie was taken back, to the same entry again.
    let taken_back = |cookie, calls| match (cookie, calls) {
        (1, _) => BadCookie,
        (_, 0) => More(&[('x', 1)]),
        _ => More(&[('x', 5)]),
    };
    assert_eq!(listed(taken_back), fails("x"));
    assert_eq!(listed(|_, _| More(&[('x', 7)])), fails("x"));
    assert_eq!(listed(|cookie, _| if cookie == 0 { More(&[('x', 7)]) } else { End(&[('x', 7)]) }), fails("x"));
    // Nothing of it is there.
    assert_eq!(listed(|_, _| More(&[('X', 7)])), fails(""));
    let two = |cookie, _| if cookie == 1 { More(&[('X', 2)]) } else { More(&[('Y', 1)]) };
    assert_eq!(listed(two), fails(""));
    // To an entry of the same part, or the beginning.
    assert_eq!(listed(|_, _| End(&[('a', 1), ('b', 2), ('c', 1)])), fails(""));
    assert_eq!(listed(|_, _| More(&[('A', 1), ('B', 2), ('C', 1)])), fails(""));
    assert_eq!(listed(|_, _| End(&[('a', 1), ('b', 0)])), fails(""));
    // In a wider circle, which begins later.
    let wide = |cookie, _| match cookie {
        0 => More(&[('a', 1)]),
        1 => More(&[('b', 2)]),
        2 => More(&[('c', 3)]),
        3 => More(&[('d', 4)]),
        4 => More(&[('e', 5)]),
        _ => More(&[('f', 3)]),
    };
    assert_eq!(listed(wide), fails("abcdefd"));
}

#[test]
fn cookies_that_are_used_twice_and_lead_on_do_no_harm() {
    use Part::{End, More};
    let part = |cookie, _| match cookie {
        // Servers that count from "." have the cookie that was asked for.
        0 => More(&[('a', 0), ('b', 1), ('c', 5), ('d', 5), ('e', 6)]),
        6 => More(&[('f', 6), ('g', 9)]),
        _ => End(&[]),
    };
    assert_eq!(listed(part), ("abcdefg".into(), Ok(())));
}

#[test]
fn a_listing_ends_when_nobody_waits_for_it() {
    let mut scene = Scene::new(2);
    // Without an end, and what it has is gone.
    let (files, calls) = mount(&mut scene, |cookie, _| {
        let entries: Vec<u8> = [1, 2].into_iter().flat_map(|more| entry('X', cookie + more)).collect();
        [&[0; 16][..], &entries, &[0; 8]].concat()
    });
    scene.run(async move |cpu| {
        let stream = files.open_directory(NodeId::ROOT).expect("opened");
        let (mut names, here) = (Names::default(), cpu.clone());
        let abandoned = Rc::clone(&names.is_abandoned);
        cpu.spawn(async move {
            here.sleep(Duration::from_millis(500)).await;
            abandoned.set(true);
        });
        let result = files.list(&cpu, stream, 0, true, &mut names).await;
        assert_eq!(result, Err(Errno(libc::EINTR)));
        let before = calls.get();
        assert!(before > 1, "the server was asked again and again");
        cpu.sleep(Duration::from_secs(1)).await;
        assert_eq!(calls.get(), before);
    });
}
