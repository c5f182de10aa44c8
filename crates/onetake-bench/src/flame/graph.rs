//! A flame graph as an SVG file.

use std::fmt::Write;

use super::stacks::{Frame, Origin};
use crate::report::{escaped, machine};

const WIDTH: f64 = 1200.0;
const ROW: f64 = 16.0;
/// The space for the title.
const TOP: f64 = 48.0;
/// The largest file. The narrowest frames are left out until the graph fits.
const BYTES_MAX: usize = 300_000;
/// The longest name of a function in a tooltip.
const NAME_CHARS_MAX: usize = 140;
/// The width of a letter.
const LETTER: f64 = 6.4;
const STYLE: &str = "rect{stroke:#fff;stroke-width:.4}text{pointer-events:none}\
                     .k rect{fill:#e0a070}.o rect{fill:#7fb3d9}.l rect{fill:#d9d9a0}";

/// Returns the graph. The width of a frame is its share of the samples. Its tooltip has the whole
/// name.
pub(super) fn text(root: &Frame, title: &str) -> String {
    let mut samples_min = 1;
    loop {
        let text = with_frames_of(root, title, samples_min);
        if text.len() <= BYTES_MAX {
            return text;
        }
        samples_min += samples_min.div_ceil(4);
    }
}

fn with_frames_of(root: &Frame, title: &str, samples_min: u64) -> String {
    let bottom = TOP + ROW * root.height(samples_min) as f64;
    let mut graph = Graph { all: root.samples as f64, samples_min, shapes: String::new() };
    graph.frame("all", root, 0, bottom - ROW);
    let height = bottom + 10.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"monospace\" font-size=\"10.5\">\n<style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"6\" y=\"18\" font-size=\"14\">{}: CPU time by function, {} samples</text>\n\
         <text x=\"6\" y=\"36\">{}. Orange: kernel. Blue: onetake. Yellow: other code. Frames of fewer \
         than {samples_min} samples are left out.</text>\n{}</svg>\n",
        escaped(title),
        root.samples,
        escaped(&machine()),
        graph.shapes,
    )
}

struct Graph {
    /// The samples of the whole graph.
    all: f64,
    samples_min: u64,
    shapes: String,
}

impl Graph {
    /// Draws a function, and above it the functions that it called. `before` is the number of
    /// samples on its left.
    fn frame(&mut self, name: &str, frame: &Frame, before: u64, y: f64) {
        let share = |samples: u64| samples as f64 / self.all;
        let (x, width) = (share(before) * WIDTH, share(frame.samples) * WIDTH);
        let class = match frame.origin {
            Origin::Kernel => "k",
            Origin::Onetake => "o",
            Origin::Other => "l",
        };
        let percent = share(frame.samples) * 100.0;
        let title: String = name.chars().take(NAME_CHARS_MAX).collect();
        let _infallible = write!(
            self.shapes,
            "<g class=\"{class}\"><title>{}, {percent:.1} %</title>\
             <rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{ROW}\"/>",
            escaped(&title)
        );
        let letters = (width / LETTER) as usize;
        if letters >= 3 {
            let label: String = short(name).chars().take(letters).collect();
            let (x, y) = (x + 2.0, y + ROW - 4.0);
            let label = escaped(&label);
            let _infallible = write!(self.shapes, "<text x=\"{x:.1}\" y=\"{y}\">{label}</text>");
        }
        self.shapes.push_str("</g>\n");
        let mut before = before;
        for (name, call) in &frame.calls {
            if call.samples >= self.samples_min {
                self.frame(name, call, before, y - ROW);
            }
            before += call.samples;
        }
    }
}

/// Returns the last two parts of a path, without the arguments of types: `Future::poll` for
/// `<a::Future<B> as c::D>::poll`.
fn short(name: &str) -> String {
    let name = match name.strip_prefix('<') {
        Some(inner) => inner.replacen(" as ", "<", 1),
        None => name.to_owned(),
    };
    let (mut depth, mut path) = (0_usize, String::new());
    for letter in name.replace("->", "").chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            letter if depth == 0 => path.push(letter),
            _ => {}
        }
    }
    let parts: Vec<&str> = path.split("::").filter(|part| !part.is_empty()).collect();
    let last = parts.get(parts.len().saturating_sub(2)..).unwrap_or_default();
    last.join("::")
}

#[cfg(test)]
mod tests {
    use super::super::stacks::tests::sample;
    use super::{BYTES_MAX, Frame, short, text};

    #[test]
    fn a_frame_is_as_wide_as_its_share() {
        let graph = text(&sample(), "onetake, case fresh");
        assert!(graph.contains("<title>core 0, 66.7 %</title><rect x=\"0.0\""), "{graph}");
        assert!(graph.contains("width=\"800.0\""), "{graph}");
        assert!(graph.contains("<g class=\"k\"><title>tcp_write, 33.3 %"), "{graph}");
        assert!(graph.contains("&lt;A&lt;B&gt; as"), "{graph}");
    }

    #[test]
    fn a_large_graph_loses_its_narrow_frames() {
        let mut root = Frame::default();
        for number in 0..20_000 {
            let call = Frame { samples: 1 + number % 50, ..Frame::default() };
            root.samples += call.samples;
            root.calls.insert(format!("function {number}"), call);
        }
        let graph = text(&root, "onetake");
        assert!(graph.len() <= BYTES_MAX && graph.matches("<g ").count() > 500, "{}", graph.len());
    }

    #[test]
    fn labels_are_the_end_of_a_path() {
        for (name, label) in [
            ("main", "main"),
            ("onetake_core::engine::run::{{closure}}", "run::{{closure}}"),
            ("<a::b::Future<C,<D as E>::F> as g::H<I>>::poll", "Future::poll"),
            ("left_right::write::WriteHandle<T,O>::publish", "WriteHandle::publish"),
        ] {
            assert_eq!(short(name), label, "{name}");
        }
    }
}
