//! The numbers of one run.

use papers::report::grouped;
use serde::Deserialize;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    RequestsASecond,
    MibASecond,
    FilesASecond,
    /// Mean latency in microseconds.
    MeanMicros,
    /// 99th percentile of the latency in microseconds.
    P99Micros,
    /// 99.9th percentile of the latency in microseconds.
    P999Micros,
    Mib,
    Percent,
    Seconds,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::RequestsASecond => "requests/s",
            Unit::MibASecond => "MiB/s",
            Unit::FilesASecond => "files/s",
            Unit::MeanMicros => "µs, mean",
            Unit::P99Micros => "µs, 99th percentile",
            Unit::P999Micros => "µs, 99.9th percentile",
            Unit::Mib => "MiB",
            Unit::Percent => "%",
            Unit::Seconds => "s",
        }
    }

    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::RequestsASecond | Unit::MibASecond | Unit::FilesASecond)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The number that is compared.
    pub value: f64,
    /// Processor time of the server for each unit of work. Microseconds.
    pub cpu_us: Option<f64>,
    /// Median and 99th percentile of the latency. Microseconds.
    pub latency_us: Option<(f64, f64)>,
}

impl Sample {
    pub fn bare(value: f64) -> Sample {
        Sample { value, cpu_us: None, latency_us: None }
    }
}

/// Two decimals below 10, one below 100, else none; thousands separated.
pub fn show(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    grouped(value, decimals, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_with_three_digits_that_count() {
        let shown = [0.123, 9.0, 12.34, 123.4, 1234.5, 1_234_567.0, -1234.0].map(show);
        assert_eq!(shown, ["0.12", "9.00", "12.3", "123", "1,234", "1,234,567", "-1,234"]);
    }
}
