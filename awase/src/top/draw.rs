//! One frame in a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState};

use super::connections::{CONNECTIONS, SortKey};
use super::section::{Section, widths};
use super::sections::{SERVER, SWITCHES};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    /// The whole server; with the switches and the connections where there is room.
    #[default]
    Overview,
    Connections,
    Switches,
}

impl Page {
    pub(super) fn next(self) -> Page {
        match self {
            Page::Overview => Page::Connections,
            Page::Connections => Page::Switches,
            Page::Switches => Page::Overview,
        }
    }
}

/// The state of the user's input.
#[derive(Default)]
pub(super) struct UiState {
    /// Index of the selected switch.
    pub selected: usize,
    /// The value being typed.
    pub typed: Option<String>,
    pub message: String,
    pub page: Page,
    /// Which connections come first.
    pub sort_key: SortKey,
}

/// A section's border and head, and one row.
const FRAME_LINES: usize = 3;

/// Between columns, where there is room for it.
const WIDE_SPACING: u16 = 2;

/// Fewest characters of the last column.
const LAST_COLUMN_MIN: u16 = 10;

/// Fewest lines of the switches.
const SWITCHES_LINES: usize = FRAME_LINES - 1 + 5;

/// Draws the page's sections below each other.
pub(super) fn draw(frame: &mut Frame<'_>, sections: &[Section], state: &UiState) {
    let lines_max = usize::from(frame.area().height).saturating_sub(1);
    let shown = shown(sections, state.page, lines_max);
    let heights = heights(&shown, lines_max);
    let mut constraints: Vec<Constraint> =
        heights.iter().map(|lines| Constraint::Length(u16::try_from(*lines).unwrap_or(u16::MAX))).collect();
    constraints.push(Constraint::Fill(1));
    constraints.push(Constraint::Length(1));
    let areas = Layout::vertical(constraints).split(frame.area());
    for (section, area) in shown.iter().zip(areas.iter()) {
        table(frame, section, state, *area);
    }
    if let Some(area) = areas.last() {
        let is_changeable = shown.iter().any(|section| section.title == SWITCHES);
        frame.render_widget(Paragraph::new(foot(sections, state, is_changeable)), *area);
    }
}

/// The lines of the whole section.
fn wanted(section: &Section) -> usize {
    section.rows.len().max(1) + FRAME_LINES - 1
}

/// The sections that are visible within `lines_max` lines.
fn shown(sections: &[Section], page: Page, lines_max: usize) -> Vec<&Section> {
    let titles: &[&str] = match page {
        Page::Overview => &[],
        Page::Connections => &[SERVER, CONNECTIONS],
        Page::Switches => &[SERVER, SWITCHES],
    };
    if !titles.is_empty() {
        return sections.iter().filter(|section| titles.contains(&section.title)).collect();
    }
    let mut shown: Vec<&Section> = sections.iter().collect();
    for left_out in [CONNECTIONS, SWITCHES] {
        if shown.iter().map(|section| wanted(section)).sum::<usize>() > lines_max {
            shown.retain(|section| section.title != left_out);
        }
    }
    shown
}

pub(super) fn shows_switches(sections: &[Section], page: Page, height: u16) -> bool {
    let lines_max = usize::from(height).saturating_sub(1);
    shown(sections, page, lines_max).iter().any(|section| section.title == SWITCHES)
}

/// The lines of each section: all if there is room, else each has its fewest lines and the rest is dealt out line by line.
fn heights(sections: &[&Section], lines_max: usize) -> Vec<usize> {
    let least = |section: &&Section| if section.title == SWITCHES { SWITCHES_LINES } else { FRAME_LINES };
    let mut heights: Vec<usize> = sections.iter().map(|section| least(section).min(wanted(section))).collect();
    let mut left = lines_max.saturating_sub(heights.iter().sum());
    while left > 0 {
        let mut any = false;
        for (height, section) in heights.iter_mut().zip(sections) {
            if left > 0 && *height < wanted(section) {
                (*height, left, any) = (*height + 1, left - 1, true);
            }
        }
        if !any {
            break;
        }
    }
    // A blank line between sections, where there is room.
    if left >= sections.len() {
        heights.iter_mut().for_each(|height| *height += 1);
    }
    heights
}

fn table(frame: &mut Frame<'_>, section: &Section, state: &UiState, area: Rect) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let dim = Style::new().add_modifier(Modifier::DIM);
    let places = usize::from(area.height).saturating_sub(FRAME_LINES - 1);
    let scrolls = section.title == SWITCHES;
    // The number of rows that do not fit is shown, except where the section scrolls.
    let hidden =
        if scrolls || section.rows.len() <= places { 0 } else { section.rows.len() - places.saturating_sub(1) };
    let cell = |(column, text): (usize, &str)| match section.is_number(column) {
        true => Cell::new(Text::raw(text.to_owned()).right_aligned()),
        false => Cell::new(text.to_owned()),
    };
    let line = |cells: &[&str]| Row::new(cells.iter().copied().enumerate().map(cell).collect::<Vec<_>>());
    let rows = section.rows[..section.rows.len() - hidden].iter();
    let rows = rows.map(|row| line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
    let rows = rows.chain((hidden > 0).then(|| Row::new([format!("+{hidden}")]).style(dim)));
    // Without enough room the last column is truncated: it has the longest texts.
    let mut widths = widths(section);
    if hidden > 0
        && let Some(first) = widths.first_mut()
    {
        // It shows the number of hidden rows.
        *first = (*first).max(6);
    }
    let without_last: u16 = widths.iter().rev().skip(1).map(|width| width + WIDE_SPACING).sum();
    let spacing = if without_last + LAST_COLUMN_MIN <= area.width { WIDE_SPACING } else { 1 };
    let mut columns: Vec<Constraint> = widths.into_iter().map(Constraint::Length).collect();
    if let Some(last) = columns.last_mut()
        && !section.is_number(section.head.len() - 1)
    {
        *last = Constraint::Fill(1);
    }
    let title = match section.title {
        CONNECTIONS => format!(" {} ({}), by {} ", section.title, section.rows.len(), state.sort_key.name()),
        title => format!(" {title} "),
    };
    let table = Table::new(rows, columns)
        .column_spacing(spacing)
        .header(line(section.head).style(dim))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::new().borders(Borders::TOP).title(Line::styled(title, bold)));
    let selected = scrolls.then_some(state.selected);
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

fn foot(sections: &[Section], state: &UiState, is_changeable: bool) -> String {
    let chosen = sections.last().and_then(|section| section.rows.get(state.selected)).and_then(|row| row.first());
    let next = match state.page {
        Page::Overview => "connections",
        Page::Connections => "switches",
        Page::Switches => "server",
    };
    match (&state.typed, chosen) {
        (Some(typed), Some(name)) => format!("{name} = {typed}_   (Enter sets it, Esc does not)"),
        _ if !state.message.is_empty() => state.message.clone(),
        _ if state.page == Page::Connections => format!("q ends  Tab {next}  s sorts"),
        _ if is_changeable => format!("q ends  Tab {next}  up/down choose a switch  left/right change it  e types"),
        _ => format!("q ends  Tab {next}"),
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

    fn drawn(width: u16, height: u16, exports: usize, state: &UiState) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
        terminal.draw(|frame| draw(frame, &sections(exports), state)).expect("drawn");
        terminal.backend().to_string()
    }

    #[test]
    fn the_selected_switch_is_visible_in_a_small_terminal_with_many_exports() {
        for selected in 0..12 {
            let screen = drawn(60, 14, 200, &UiState { selected, page: Page::Switches, ..UiState::default() });
            assert!(screen.contains(&format!("switch-{selected} ")), "{screen}");
        }
        let screen = drawn(60, 14, 200, &UiState::default());
        assert!(screen.contains("disk-8") && screen.contains("+190") && !screen.contains("switch-"), "{screen}");
        assert!(drawn(60, 40, 3, &UiState::default()).contains("switch-11 "), "there is room for all");
    }

    #[test]
    fn connections_have_their_own_page_and_hidden_rows_are_counted() {
        let row = |number: usize| vec![number.to_string(), format!("10.0.0.{number}")];
        let of = |title, count| Section { title, head: &["no.", "client"], rows: (1..=count).map(row).collect() };
        let sections = [of(SERVER, 1), of("exports", 3), of(CONNECTIONS, 100), of(SWITCHES, 12)];
        let drawn = |page, height| {
            let mut terminal = Terminal::new(TestBackend::new(80, height)).expect("a terminal in memory");
            let state = UiState { page, ..UiState::default() };
            terminal.draw(|frame| draw(frame, &sections, &state)).expect("drawn");
            terminal.backend().to_string()
        };
        let page = drawn(Page::Connections, 24);
        // Server 3, border and head 2, foot 1.
        assert!(page.contains("connections (100), by requests/s") && page.contains("10.0.0.17"), "{page}");
        assert!(page.contains("+83") && !page.contains("10.0.0.18") && !page.contains(" switches \u{2500}"), "{page}");
        let page = drawn(Page::Overview, 24);
        assert!(
            !page.contains("connections (") && page.contains(" switches \u{2500}") && page.contains("10.0.0.3"),
            "{page}"
        );
        assert!(drawn(Page::Overview, 150).contains("10.0.0.100"), "there is room for all");
    }

    #[test]
    fn terminals_of_any_size_can_be_drawn() {
        for (width, height) in [(1, 1), (2, 9), (300, 2), (80, 24)] {
            drawn(width, height, 3, &UiState { typed: Some("24ms".into()), ..UiState::default() });
        }
    }
}
