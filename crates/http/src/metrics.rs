//! What a listener tells Prometheus: its text format, and the histograms behind it.
//!
//! Names, labels and what they mean are each listener's own. Labels must come from sets that
//! are known beforehand or small, as kinds and nodes are; never ids of tasks or sessions.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::fmt::Write as _;

/// Upper bounds, in seconds, for what takes from milliseconds to hours.
pub const SECONDS: &[f64] =
    &[0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0];

/// How often values fell where.
#[derive(Debug, Clone)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than there are bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Without values. The bounds rise.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts a value. What is no number is left out.
    pub fn observe(&mut self, value: f64) {
        if value.is_nan() {
            return;
        }
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += value;
    }
}

/// A page in Prometheus' text format.
#[derive(Debug, Default)]
pub struct Page(String);

/// What kind of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only ever rises, until the process starts anew.
    Counter,
    /// Rises and falls.
    Gauge,
}

/// Names and values by which numbers of a metric are told apart.
pub type Labels<'a> = [(&'static str, &'a str)];

impl Page {
    /// Begins a metric, whose values follow.
    pub fn metric(&mut self, kind: Kind, name: &'static str, help: &str) -> Metric<'_> {
        self.head(name, help, if kind == Kind::Counter { "counter" } else { "gauge" });
        Metric { page: self, name }
    }

    /// Begins a histogram.
    pub fn histogram(&mut self, name: &'static str, help: &str) -> Metric<'_> {
        self.head(name, help, "histogram");
        Metric { page: self, name }
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, suffix: &str, labels: &Labels<'_>, value: f64) {
        let _ = write!(self.0, "{name}{suffix}");
        for (index, (label, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{before}{label}=\"{value}\"");
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

/// A metric that values are added to.
pub struct Metric<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Metric<'_> {
    /// Adds a value.
    pub fn value(&mut self, labels: &Labels<'_>, value: f64) -> &mut Self {
        self.page.line(self.name, "", labels, value);
        self
    }

    /// Adds a histogram's values.
    pub fn values(&mut self, labels: &Labels<'_>, histogram: &Histogram) -> &mut Self {
        let mut below = 0;
        let bounds = histogram.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&histogram.counts) {
            below += count;
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.page.line(self.name, "_bucket", &labels, below as f64);
        }
        self.page.line(self.name, "_sum", labels, histogram.sum);
        self.page.line(self.name, "_count", labels, below as f64);
        self
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], self.0)
            .into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_reads_as_prometheus_expects() {
        let mut page = Page::default();
        page.metric(Kind::Gauge, "polar_nodes", "How many.\nNow.")
            .value(&[], 2.0)
            .value(&[("node", "a\"b\\c\n"), ("kind", "x")], 0.5);
        let mut seconds = Histogram::new(&[0.5, 1.0]);
        for value in [0.5, 0.75, 7.0, f64::NAN] {
            seconds.observe(value);
        }
        page.histogram("polar_seconds", "How long.").values(&[("stage", "run")], &seconds);
        assert_eq!(
            page.0,
            "# HELP polar_nodes How many.\\nNow.\n\
             # TYPE polar_nodes gauge\n\
             polar_nodes 2\n\
             polar_nodes{node=\"a\\\"b\\\\c\\n\",kind=\"x\"} 0.5\n\
             # HELP polar_seconds How long.\n\
             # TYPE polar_seconds histogram\n\
             polar_seconds_bucket{stage=\"run\",le=\"0.5\"} 1\n\
             polar_seconds_bucket{stage=\"run\",le=\"1\"} 2\n\
             polar_seconds_bucket{stage=\"run\",le=\"+Inf\"} 3\n\
             polar_seconds_sum{stage=\"run\"} 8.25\n\
             polar_seconds_count{stage=\"run\"} 3\n"
        );
    }
}
