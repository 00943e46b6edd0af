//! Text as HTML.

/// Text as HTML, in an element or an attribute in quotes.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => html += "&amp;",
            '<' => html += "&lt;",
            '>' => html += "&gt;",
            '"' => html += "&quot;",
            '\'' => html += "&#39;",
            // Not allowed in HTML.
            '\0'..='\u{8}' | '\u{b}'..='\u{1f}' => {}
            _ => html.push(character),
        }
    }
    html
}
