use futures_util::FutureExt;

use super::*;

#[test]
fn the_same_line_is_reported_once_until_there_is_another() {
    let link = Link::default();
    let news: Vec<bool> = ["away", "away", "here", "here", "away"].map(|line| link.is_news(line)).to_vec();
    assert_eq!(news, [true, false, true, false, true]);
}

#[test]
fn without_a_connection_nothing_is_queued() {
    let (link, now) = (Link::default(), Instant::from_ns(1));
    link.push(Incarnation(2), Incarnation(2), Word::Beat, None);
    assert!(!link.is_behind(now));
    link.queue.lock().is_up = true;
    link.push(Incarnation(2), Incarnation(2), Word::Beat, None);
    assert!(link.is_behind(now));
    link.end_any();
    assert!(!link.is_behind(now));
}

#[test]
fn a_link_is_behind_while_words_have_been_leaving_for_so_long_that_they_would_be_repeated() {
    let (link, begin) = (Link::default(), Instant::from_ns(1));
    let later = begin + RETRANSMIT_AFTER;
    link.queue.lock().is_up = true;
    link.push(Incarnation(2), Incarnation(2), Word::Beat, None);
    let words = link.next(|| begin, 0).now_or_never();
    assert!(words.is_some_and(|words| words.is_some_and(|words| words.len() == 1)));
    assert!(!link.is_behind(begin) && link.is_behind(later));
    link.have_left(0);
    assert!(!link.is_behind(later));
}
