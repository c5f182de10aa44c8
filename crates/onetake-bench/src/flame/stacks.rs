//! The stacks that `perf script` prints, as a tree.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// A function in the stacks that have the same callers.
#[derive(Debug, Default)]
pub(super) struct Frame {
    pub(super) origin: Origin,
    /// The number of samples in this function, or in one that it called.
    pub(super) samples: u64,
    /// The functions that it called, by their names.
    pub(super) calls: BTreeMap<String, Frame>,
}

/// The code that a function belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    /// A function of a library, or a thread.
    #[default]
    Other,
    Onetake,
    Kernel,
}

/// Reads samples. The lowest frames are the names of threads.
pub(super) fn read(output: impl BufRead) -> io::Result<Frame> {
    let mut root = Frame::default();
    let (mut thread, mut stack) = (String::new(), Vec::new());
    for line in output.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if line.trim().is_empty() {
            root.add(&thread, std::mem::take(&mut stack));
        } else if line.starts_with(char::is_whitespace) {
            stack.push(function(&line));
        } else {
            thread = line.trim().to_owned();
        }
    }
    root.add(&thread, stack);
    Ok(root)
}

/// Returns the function of a line: an address, a name, and a file in parentheses.
fn function(line: &str) -> (String, Origin) {
    let (_, rest) = line.trim().split_once(' ').unwrap_or_default();
    let (name, file) = rest.rsplit_once(" (").unwrap_or((rest, ""));
    let origin = if file.starts_with("[kernel") {
        Origin::Kernel
    } else if name.contains("onetake") {
        Origin::Onetake
    } else {
        Origin::Other
    };
    (name.to_owned(), origin)
}

impl Frame {
    /// Adds a sample. The stack begins with the function that ran.
    fn add(&mut self, thread: &str, stack: Vec<(String, Origin)>) {
        if stack.is_empty() {
            return;
        }
        self.samples += 1;
        let thread = (thread.to_owned(), Origin::Other);
        let mut frame = self;
        for (name, origin) in std::iter::once(thread).chain(stack.into_iter().rev()) {
            frame = frame.calls.entry(name).or_default();
            frame.origin = origin;
            frame.samples += 1;
        }
    }

    /// Returns the number of frames on top of each other that have at least this many samples.
    pub(super) fn height(&self, samples_min: u64) -> usize {
        let calls = self.calls.values().filter(|call| call.samples >= samples_min);
        1 + calls.map(|call| call.height(samples_min)).max().unwrap_or_default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Frame, Origin, read};

    const OUTPUT: &str = "\
core 0 \n\tffffffff81 tcp_write ([kernel.kallsyms])\n\t  55d0 onetake_http::call (/usr/bin/onetake)\n\
\t  4410 main (/usr/bin/onetake)\n\ncore 0 \n\t  5510 <A<B> as onetake_core::C>::run (/usr/bin/onetake)\n\
\t  4410 main (/usr/bin/onetake)\n\ncore 1 \n\ncore 1 \n\t  0 [unknown] ([unknown])\n";

    pub(in crate::flame) fn sample() -> Frame {
        read(OUTPUT.as_bytes()).unwrap()
    }

    #[test]
    fn stacks_with_the_same_callers_are_one_frame() {
        let root = sample();
        assert_eq!(root.samples, 3);
        let main = &root.calls["core 0"].calls["main"];
        assert_eq!((main.samples, main.origin, main.calls.len()), (2, Origin::Other, 2));
        let call = &main.calls["onetake_http::call"];
        assert_eq!((call.samples, call.origin), (1, Origin::Onetake));
        assert_eq!(call.calls["tcp_write"].origin, Origin::Kernel);
        assert_eq!(main.calls["<A<B> as onetake_core::C>::run"].origin, Origin::Onetake);
        assert_eq!(root.calls["core 1"].calls["[unknown]"].samples, 1);
        assert_eq!((root.height(1), root.height(2)), (5, 3));
    }
}
