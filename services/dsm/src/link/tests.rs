use super::*;

#[test]
fn the_same_line_is_reported_once_until_there_is_another() {
    let link = Link::default();
    let news: Vec<bool> = ["away", "away", "here", "here", "away"].map(|line| link.is_news(line)).to_vec();
    assert_eq!(news, [true, false, true, false, true]);
}

#[test]
fn without_a_connection_nothing_is_queued() {
    let link = Link::default();
    link.push(Incarnation(2), Incarnation(2), Word::Beat, None);
    assert!(!link.is_behind());
    link.queue.lock().is_up = true;
    link.push(Incarnation(2), Incarnation(2), Word::Beat, None);
    assert!(link.is_behind());
    link.end_any();
    assert!(!link.is_behind());
}
