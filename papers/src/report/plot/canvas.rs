//! The canvas of plots, with fractions of pixels, so that curves are smooth.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Undrawn;
use crate::report::style::Colour;

/// Internal units of a pixel.
const UNITS: f64 = 4.0;

/// plotters divides font sizes by this.
const FONT_FACTOR: f64 = 1.24;

/// A point, in pixels from the upper left corner.
pub type At = (f64, f64);

/// Where text lies relative to its point.
#[derive(Clone, Copy)]
pub enum Side {
    Left,
    Centre,
    Right,
}

pub struct Canvas<'a>(DrawingArea<SVGBackend<'a>, Shift>);

impl<'a> Canvas<'a> {
    pub fn new(text: &'a mut String, (width, height): At) -> Self {
        Canvas(SVGBackend::with_string(text, (units(width) as u32, units(height) as u32)).into_drawing_area())
    }

    pub fn finish(self) -> Result<(), Undrawn> {
        self.0.present().map_err(Undrawn::new)
    }

    pub fn text(&self, text: &str, at: At, size: f64, colour: Colour, side: Side) -> Result<(), Undrawn> {
        let side = match side {
            Side::Left => HPos::Left,
            Side::Centre => HPos::Center,
            Side::Right => HPos::Right,
        };
        let font = ("sans-serif", size * UNITS * FONT_FACTOR).into_font();
        let style = font.color(&colour.light).pos(Pos::new(side, VPos::Center));
        self.0.draw(&Text::new(text.to_owned(), place(at), style)).map_err(Undrawn::new)
    }

    /// A line through all points, dashed if lengths of dash and gap are given.
    pub fn line(&self, points: &[At], colour: Colour, width: f64, dashes: Option<(f64, f64)>) -> Result<(), Undrawn> {
        let style = colour.light.stroke_width(units(width) as u32);
        let pieces = match dashes {
            Some((dash, gap)) => dashed(points, dash, gap),
            None => vec![points.to_vec()],
        };
        for piece in pieces.into_iter().filter(|piece| piece.len() > 1) {
            let piece: Vec<_> = piece.into_iter().map(place).collect();
            self.0.draw(&PathElement::new(piece, style)).map_err(Undrawn::new)?;
        }
        Ok(())
    }

    pub fn circle(&self, at: At, radius: f64, colour: Colour) -> Result<(), Undrawn> {
        self.0.draw(&Circle::new(place(at), units(radius), colour.light.filled())).map_err(Undrawn::new)
    }

    pub fn rectangle(&self, from: At, to: At, colour: Colour) -> Result<(), Undrawn> {
        self.0.draw(&Rectangle::new([place(from), place(to)], colour.light.filled())).map_err(Undrawn::new)
    }
}

fn units(pixels: f64) -> i32 {
    (pixels * UNITS).round() as i32
}

fn place((x, y): At) -> (i32, i32) {
    (units(x), units(y))
}

/// The dashes of a line, which continue around its corners.
fn dashed(points: &[At], dash: f64, gap: f64) -> Vec<Vec<At>> {
    let mut pieces = Vec::new();
    let mut piece: Vec<At> = points.first().copied().into_iter().collect();
    let (mut drawing, mut left) = (true, dash);
    for pair in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let length = ((x1 - x0) * (x1 - x0) + (y1 - y0) * (y1 - y0)).sqrt();
        let mut done = 0.0;
        while length - done > left {
            done += left;
            let at = (x0 + (x1 - x0) * done / length, y0 + (y1 - y0) * done / length);
            if drawing {
                piece.push(at);
                pieces.push(std::mem::take(&mut piece));
            } else {
                piece = vec![at];
            }
            drawing = !drawing;
            left = if drawing { dash } else { gap };
        }
        left -= length - done;
        if drawing {
            piece.push((x1, y1));
        }
    }
    pieces.push(piece);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_go_on_around_corners() {
        let pieces = dashed(&[(0.0, 0.0), (5.0, 0.0), (5.0, 10.0)], 4.0, 2.0);
        let first = vec![(0.0, 0.0), (4.0, 0.0)];
        let second = vec![(5.0, 1.0), (5.0, 5.0)];
        let third = vec![(5.0, 7.0), (5.0, 10.0)];
        assert_eq!(pieces, [first, second, third]);
    }
}
