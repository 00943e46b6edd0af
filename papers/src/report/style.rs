//! Colours of the report, for light and for dark screens.

use std::fmt::Write as _;

use plotters::style::RGBColor;

use crate::result::Source;

/// A colour on a light and on a dark ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    pub light: RGBColor,
    pub dark: RGBColor,
}

pub const fn colour(light: u32, dark: u32) -> Colour {
    const fn rgb(hex: u32) -> RGBColor {
        RGBColor((hex >> 16) as u8, (hex >> 8) as u8, hex as u8)
    }
    Colour { light: rgb(light), dark: rgb(dark) }
}

pub const INK: Colour = colour(0x1F2328, 0xE6E8EB);
pub const FAINT: Colour = colour(0x59636E, 0x9AA4AF);
pub const GRID: Colour = colour(0xE4E7EB, 0x30363D);
/// The ground of a plot, which hollow marks show.
pub const GROUND: Colour = colour(0xFFFFFE, 0x171B21);

/// Colours of series, in order: those of Okabe and Ito, which people who confuse red and green can distinguish, without
/// the yellow, which is faint on white.
pub const PALETTE: [Colour; 8] = [
    colour(0x0072B2, 0x4AA8E0),
    colour(0xD55E00, 0xFF8A3D),
    colour(0x009E73, 0x2BC79A),
    colour(0xB5508A, 0xE08ABF),
    colour(0xC98500, 0xF0B429),
    colour(0x3399CC, 0x8FD0F5),
    colour(0x7A3E9D, 0xB58AD6),
    colour(0x6B6B6B, 0xABABAB),
];

/// Dashes of a source's lines: lengths of dash and gap, in pixels.
pub fn dashes(source: Source) -> Option<(f64, f64)> {
    match source {
        Source::Paper => Some((6.0, 4.0)),
        Source::Simulated => None,
        Source::Local => Some((1.5, 3.5)),
    }
}

fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    // As plotters writes it.
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// Rules that turn the drawn light colours into the dark ones. Rules override the drawing's attributes.
pub fn dark_rules(prefix: &str) -> String {
    let mut rules = String::new();
    for colour in [INK, FAINT, GRID, GROUND].iter().chain(&PALETTE) {
        let (light, dark) = (hex(colour.light), hex(colour.dark));
        for attribute in ["fill", "stroke"] {
            let _ = writeln!(rules, "{prefix} svg [{attribute}=\"{light}\"] {{ {attribute}: {dark}; }}");
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_stands_out_from_its_ground() {
        let light_of = |RGBColor(red, green, blue): RGBColor| {
            let linear = |part: u8| (f64::from(part) / 255.0).powf(2.2);
            0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
        };
        let contrast = |a: RGBColor, b: RGBColor| {
            let (a, b) = (light_of(a), light_of(b));
            (a.max(b) + 0.05) / (a.min(b) + 0.05)
        };
        for colour in PALETTE {
            assert!(contrast(colour.light, GROUND.light) > 2.8, "{colour:?}");
            assert!(contrast(colour.dark, GROUND.dark) > 4.5, "{colour:?}");
        }
    }
}
