//! The course of a load and its latencies, as an SVG picture.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

use super::measure::Measured;

const SIZE: (u32, u32) = (960, 420);
const BLUE: RGBColor = RGBColor(38, 93, 171);

/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, measured: &Measured) -> anyhow::Result<()> {
    draw(path, measured).map_err(|error| anyhow!("{error}"))
}

fn draw(path: &Path, measured: &Measured) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(SIZE.0 / 2);
    let seconds = measured.seconds.len().max(1);
    let most = measured.seconds.iter().copied().max().unwrap_or(1).max(1);
    let mut chart = ChartBuilder::on(&left)
        .caption("transactions in each second", ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0f64..seconds as f64, 0f64..most as f64 * 1.1)?;
    chart.configure_mesh().x_desc("s").light_line_style(WHITE).draw()?;
    let points = measured.seconds.iter().enumerate().map(|(at, count)| (at as f64 + 0.5, *count as f64));
    chart.draw_series(LineSeries::new(points, BLUE.stroke_width(2)))?;
    let all = measured.all();
    // From the median to 99.99 %, by the nines.
    let nines = |percentile: f64| -(1.0 - percentile / 100.0).log10();
    let points: Vec<(f64, f64)> = (0..=80)
        .map(|step| 4.0 * f64::from(step) / 80.0)
        .map(|nines| (nines, 100.0 * (1.0 - 10f64.powf(-nines))))
        .map(|(nines, percentile)| (nines, all.value_at_percentile(percentile) as f64 / 1000.0))
        .collect();
    let high = points.last().map_or(1.0, |(_, value)| *value).max(0.01) * 1.1;
    let mut chart = ChartBuilder::on(&right)
        .caption("latency in ms, by percentile", ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0f64..nines(99.99), 0f64..high)?;
    let name = |nines: &f64| match nines.round() as u32 {
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        2 => "99 %".to_owned(),
        3 => "99.9 %".to_owned(),
        _ => "99.99 %".to_owned(),
    };
    chart.configure_mesh().x_labels(5).x_label_formatter(&name).light_line_style(WHITE).draw()?;
    chart.draw_series(LineSeries::new(points, BLUE.stroke_width(2)))?;
    root.present()?;
    Ok(())
}
