//! One frame in a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table, TableState};

use super::sections::{SWITCHES, Section, widths};

/// What the person at the keys is doing.
#[derive(Default)]
pub(super) struct Desk {
    /// The switch that is chosen.
    pub selected: usize,
    /// The value that is being typed.
    pub typed: Option<String>,
    /// What happened last.
    pub message: String,
}

/// A section's border and head.
const FRAME_LINES: usize = 3;

/// Draws all sections below each other; the last, the switches, has what is left and scrolls.
pub(super) fn draw(frame: &mut Frame<'_>, sections: &[Section], desk: &Desk) {
    let height = |section: &Section| {
        let lines = u16::try_from(section.rows.len() + FRAME_LINES).unwrap_or(u16::MAX);
        // One more than the least of the switches, however much else there is.
        if section.title == SWITCHES { Constraint::Min(FRAME_LINES as u16 + 4) } else { Constraint::Max(lines) }
    };
    let mut constraints: Vec<Constraint> = sections.iter().map(height).collect();
    constraints.push(Constraint::Length(1));
    let areas = Layout::vertical(constraints).split(frame.area());
    for (section, area) in sections.iter().zip(areas.iter()) {
        table(frame, section, desk, *area);
    }
    if let Some(area) = areas.last() {
        frame.render_widget(Paragraph::new(foot(sections, desk)), *area);
    }
}

fn table(frame: &mut Frame<'_>, section: &Section, desk: &Desk, area: Rect) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let rows = section.rows.iter().map(|row| Row::new(row.iter().map(String::as_str)));
    // Where there is too little room, the last column is cut off: it has the longest texts.
    let mut columns: Vec<Constraint> = widths(section).into_iter().map(Constraint::Length).collect();
    if let Some(last) = columns.last_mut() {
        *last = Constraint::Fill(1);
    }
    let table = Table::new(rows, columns)
        .column_spacing(2)
        .header(Row::new(section.head.iter().copied()).style(Style::new().add_modifier(Modifier::DIM)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::new().borders(Borders::TOP).title(Line::styled(format!(" {} ", section.title), bold)));
    let selected = (section.title == SWITCHES).then_some(desk.selected);
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

fn foot(sections: &[Section], desk: &Desk) -> String {
    let chosen = sections.last().and_then(|section| section.rows.get(desk.selected)).and_then(|row| row.first());
    match (&desk.typed, chosen) {
        (Some(typed), Some(name)) => format!("{name} = {typed}_   (Enter sets it, Esc does not)"),
        _ if !desk.message.is_empty() => desk.message.clone(),
        _ => "up/down choose a switch   left/right/space change it   e types a value   q ends".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn sections(exports: usize) -> Vec<Section> {
        let row = |name: &str, number: usize| vec![format!("{name}{number}"), "true".to_owned()];
        let rows = |name: &'static str, count: usize| (0..count).map(|number| row(name, number)).collect();
        vec![
            Section { title: "exports", head: &["export", "is"], rows: rows("disk-", exports) },
            Section { title: SWITCHES, head: &["switch", "value"], rows: rows("switch-", 12) },
        ]
    }

    fn drawn(width: u16, height: u16, exports: usize, desk: &Desk) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
        terminal.draw(|frame| draw(frame, &sections(exports), desk)).expect("drawn");
        terminal.backend().to_string()
    }

    #[test]
    fn the_chosen_switch_is_in_sight_however_small_the_terminal_and_however_many_the_exports() {
        for selected in 0..12 {
            let screen = drawn(60, 14, 200, &Desk { selected, ..Desk::default() });
            assert!(screen.contains(&format!("switch-{selected} ")), "{screen}");
            assert!(screen.contains("disk-0"), "{screen}");
        }
    }

    #[test]
    fn a_terminal_of_any_size_is_drawn_on() {
        for (width, height) in [(1, 1), (2, 9), (300, 2), (80, 24)] {
            drawn(width, height, 3, &Desk { typed: Some("24ms".into()), ..Desk::default() });
        }
    }
}
