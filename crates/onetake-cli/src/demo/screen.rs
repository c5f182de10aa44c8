//! Output of the demo: a live table in a terminal, otherwise one line a second.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Options;
use super::report::DemoReport;
use super::table::{self, Figures, Paint, dollars, number};
use super::tap::{DOUBLE_PERCENT, HUNG_UP_PERCENT, LOST_PERCENT};

const LIVE_INTERVAL: Duration = Duration::from_millis(100);
const LINES_INTERVAL: Duration = Duration::from_secs(1);

/// The kind of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Screen {
    /// A live table in the terminal.
    Live,
    /// One line every second on standard output, without escape codes.
    Lines,
    /// No output. Only the report counts.
    Silent,
}

impl Screen {
    /// Live if standard output is a terminal that can move its cursor, otherwise lines.
    #[must_use]
    pub fn detect() -> Self {
        match ProgressDrawTarget::stdout().is_hidden() {
            true => Self::Lines,
            false => Self::Live,
        }
    }

    /// Prints the introduction and starts the display.
    pub(super) fn begin(self, options: Options) -> Show {
        let no_colours = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let show = Show {
            screen: self,
            options,
            paint: Paint { colours: self == Self::Live && !no_colours },
            bar: match self {
                Self::Live => bar(options),
                Self::Lines | Self::Silent => ProgressBar::hidden(),
            },
        };
        show.say(&introduction(options));
        show.update(Duration::ZERO, &Figures::default(), &Figures::default());
        show
    }
}

/// A display in progress.
#[derive(Debug)]
pub(super) struct Show {
    screen: Screen,
    options: Options,
    paint: Paint,
    bar: ProgressBar,
}

impl Show {
    /// The interval of updates.
    pub(super) fn interval(&self) -> Duration {
        match self.screen {
            Screen::Live => LIVE_INTERVAL,
            Screen::Lines | Screen::Silent => LINES_INTERVAL,
        }
    }

    pub(super) fn update(&self, elapsed: Duration, without: &Figures, with: &Figures) {
        match self.screen {
            Screen::Silent => {}
            Screen::Lines if elapsed.is_zero() => self.say(""),
            Screen::Lines => self.say(&table::line(elapsed, without, with)),
            Screen::Live => {
                let length = self.options.length();
                let millis = u64::try_from(elapsed.min(length).as_millis()).unwrap_or(u64::MAX);
                self.bar.set_message(table::live(without, with, self.paint));
                self.bar.set_prefix(match elapsed < length {
                    true => format!("{:>2} of {} s", elapsed.as_secs(), length.as_secs()),
                    false => "last retries".to_owned(),
                });
                self.bar.set_position(millis);
            }
        }
    }

    /// Replaces the live display with the final table and the conclusion.
    pub(super) fn end(&self, report: &DemoReport) {
        self.bar.finish_and_clear();
        let table = table::last(report, self.paint);
        let conclusion = conclusion(report, self.paint);
        self.say(&format!("\n{table}\n\n{conclusion}"));
    }

    fn say(&self, text: &str) {
        if self.screen != Screen::Silent {
            // The reader may be gone (`| head`). Then only the exit code counts.
            let _unread = writeln!(std::io::stdout(), "{text}");
        }
    }
}

fn bar(options: Options) -> ProgressBar {
    let length = u64::try_from(options.length().as_millis()).unwrap_or(u64::MAX);
    // The first line is empty: it is the one that remains when a terminal echoes ^C.
    let template = "\n{msg}\n\n  {bar:54.green/8}  {prefix}";
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━╸─");
    ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stdout()).with_style(style)
}

fn introduction(options: Options) -> String {
    let Options { seconds, rate, seed } = options;
    let often = match rate {
        1 => "once".to_owned(),
        rate => format!("{} times", number(rate)),
    };
    format!(
        "
  Customers with bad reception tap \"Pay\" {often} a second, for {}.
  {LOST_PERCENT} % of the answers get lost, {HUNG_UP_PERCENT} % of the requests are given up on, and {DOUBLE_PERCENT} %
  of the taps are double taps. A tap has one key, which all its retries carry.
  The same taps go to two payment APIs that ignore keys, as most do: to one
  directly, to the other through onetake. (Real HTTP over loopback, real
  ledgers, a real embedded store; seed {seed}.)",
        duration(seconds)
    )
}

fn conclusion(report: &DemoReport, paint: Paint) -> String {
    let mut lines = Vec::new();
    let seconds = duration((report.elapsed + Duration::from_millis(500)).as_secs());
    let taps = report.with.verdict.taps;
    if report.interrupted {
        lines.push(format!("  Stopped early, after {seconds}."));
    } else if taps < report.planned {
        lines.push(format!(
            "  This machine was too slow: it made {} of the {} requested taps.",
            number(taps),
            number(report.planned)
        ));
    }
    let failures = report.failures();
    for failure in &failures {
        lines.push(format!("  {} {failure}.", paint.bad("FAILED:")));
    }
    if !failures.is_empty() {
        return lines.join("\n");
    }
    if report.without.verdict.doubled == 0 {
        lines.push(format!(
            "  Without onetake no tap happened to be charged twice either (taps: {}):\n  \
             there was nothing to save. Try more --seconds or a higher --rate.",
            number(taps)
        ));
    } else {
        let saved = dollars(report.saved_cents());
        lines.push(format!("  {}", paint.good(&format!("onetake saved {saved} in {seconds}."))));
    }
    lines.join("\n")
}

fn duration(seconds: u64) -> String {
    match seconds {
        1 => "1 second".to_owned(),
        seconds => format!("{seconds} seconds"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Summary;
    use super::super::verdict::SideVerdict;
    use super::*;

    const PLAIN: Paint = Paint { colours: false };

    fn report(doubled_without: u64, with: SideVerdict) -> DemoReport {
        let verdict = SideVerdict {
            doubled: doubled_without,
            overcharged_cents: doubled_without * 250,
            ..with
        };
        let summary = |verdict| Summary { verdict, ..Summary::default() };
        DemoReport {
            planned: with.taps,
            elapsed: Duration::from_millis(14_990),
            interrupted: false,
            without: summary(verdict),
            with: summary(with),
        }
    }

    fn taps(taps: u64) -> SideVerdict {
        SideVerdict { taps, ..SideVerdict::default() }
    }

    #[test]
    fn the_introduction_fits_in_80_columns() {
        for options in [Options::new(600, 1_000, u64::MAX), Options::new(1, 1, 1)] {
            let text = introduction(options.unwrap());
            assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        }
    }

    #[test]
    fn the_end_says_what_was_saved() {
        let text = conclusion(&report(2, taps(600)), PLAIN);
        assert_eq!(text, "  onetake saved $5.00 in 15 seconds.");
    }

    #[test]
    fn the_end_invents_nothing_where_nothing_was_saved() {
        let text = conclusion(&report(0, taps(1)), PLAIN);
        assert!(text.contains("nothing to save") && !text.contains('$'), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn a_broken_promise_is_not_called_a_saving() {
        let bad = SideVerdict { doubled: 1, ..taps(600) };
        let text = conclusion(&report(2, bad), PLAIN);
        assert!(text.contains("FAILED: taps charged twice or more with onetake: 1."));
        assert!(!text.contains("saved"), "{text}");
    }

    #[test]
    fn a_machine_that_does_not_keep_up_says_so() {
        let mut slow = report(2, taps(900));
        slow.planned = 1_000;
        let text = conclusion(&slow, PLAIN);
        assert!(text.contains("it made 900 of the 1,000 requested taps"), "{text}");
        slow.interrupted = true;
        let text = conclusion(&slow, PLAIN);
        assert!(text.starts_with("  Stopped early, after 15 seconds."), "{text}");
    }
}
