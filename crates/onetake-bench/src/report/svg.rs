//! The ratios of throughput as a bar chart.

use std::fmt::Write;

use super::{Row, Section, machine};

const WIDTH: f64 = 820.0;
/// The left end of the bars.
const LEFT: f64 = 130.0;
/// The space for the figures on the right.
const RIGHT: f64 = 300.0;
const BAR: f64 = 14.0;
const STEP: f64 = 20.0;
const TITLE: f64 = 30.0;
const COLOUR: &str = "#1f77b4";
const FIRST_COLOUR: &str = "#9aa5b1";
/// A longer bar is cut off.
const RATIO_MAX: f64 = 2.5;

/// Returns the chart. A bar is the median of the ratios to the first program in the same round. The
/// line across its end goes from the lowest to the highest ratio.
pub(super) fn text(sections: &[Section]) -> String {
    let mut shapes = String::new();
    let mut y = 52.0;
    for section in sections.iter().filter(|section| !section.rounds.is_empty()) {
        y = chart(&mut shapes, section, y);
    }
    let height = y + 10.0;
    let one = x(1.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"15\" font-weight=\"bold\">Requests per second, as a ratio to \
         the first program of each case</text>\n\
         <text x=\"10\" y=\"38\" fill=\"#555555\">{}</text>\n\
         <line x1=\"{one}\" y1=\"48\" x2=\"{one}\" y2=\"{height}\" stroke=\"#bbbbbb\" \
         stroke-dasharray=\"3 3\"/>\n{shapes}</svg>\n",
        escaped(&machine()),
    )
}

fn chart(shapes: &mut String, section: &Section, top: f64) -> f64 {
    let mut y = top + TITLE;
    let (case, connections) = (escaped(section.case), section.connections);
    let title = y - 10.0;
    let _infallible = writeln!(
        shapes,
        "<text x=\"10\" y=\"{title}\" font-weight=\"bold\">{case}, {connections} connections</text>"
    );
    for (place, row) in section.rows().iter().enumerate() {
        bar(shapes, row, if place == 0 { FIRST_COLOUR } else { COLOUR }, y);
        y += STEP;
    }
    y
}

fn bar(shapes: &mut String, row: &Row, colour: &str, y: f64) {
    let ratio = row.throughput;
    let (end, low, high) = (x(ratio.median), x(ratio.low), x(ratio.high));
    let (width, middle, text) = (end - LEFT, y + BAR / 2.0, y + BAR - 3.0);
    let (name, figures) = (LEFT - 8.0, WIDTH - RIGHT + 10.0);
    let _infallible = writeln!(
        shapes,
        "<text x=\"{name:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\
         <rect class=\"bar\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" \
         fill=\"{colour}\"/>\
         <line x1=\"{low:.1}\" y1=\"{middle:.1}\" x2=\"{high:.1}\" y2=\"{middle:.1}\" \
         stroke=\"#222222\" stroke-width=\"2\"/>\
         <text x=\"{figures:.1}\" y=\"{text:.1}\">{:.2} ({:.2} to {:.2}) · {:.0}/s · p99 {:.2} ms</text>",
        escaped(&row.program),
        ratio.median,
        ratio.low,
        ratio.high,
        row.medians.throughput,
        row.medians.p99_ms,
    );
}

/// Returns the place of a ratio.
fn x(ratio: f64) -> f64 {
    let part = if ratio.is_finite() { ratio.clamp(0.0, RATIO_MAX) / RATIO_MAX } else { 0.0 };
    LEFT + part * (WIDTH - LEFT - RIGHT)
}

/// Returns a text for the inside of an element.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
