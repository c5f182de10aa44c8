//! Tables of figures, at most 80 columns wide.

use std::time::Duration;

use super::report::{DemoReport, PhoneTraffic, Summary};

/// Widths of the label column and of each side's column.
const LABEL: usize = 34;
const CELL: usize = 18;

/// Figures of one side.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) taps: u64,
    pub(super) charges: u64,
    pub(super) doubled: u64,
    pub(super) overcharged_cents: u64,
    pub(super) traffic: PhoneTraffic,
}

impl From<&Summary> for Figures {
    fn from(summary: &Summary) -> Self {
        Self {
            taps: summary.verdict.taps,
            charges: summary.verdict.charges,
            doubled: summary.verdict.doubled,
            overcharged_cents: summary.verdict.overcharged_cents,
            traffic: summary.traffic,
        }
    }
}

/// Terminal colours, on or off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    pub(super) colours: bool,
}

impl Paint {
    pub(super) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(super) fn good(self, text: &str) -> String {
        self.wrap("1;32", text)
    }

    pub(super) fn bad(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        match self.colours {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

struct Row {
    label: &'static str,
    cells: [String; 2],
    /// For figures that should be zero: true for each side where the figure is above zero.
    harm: Option<[bool; 2]>,
}

impl Row {
    fn plain(label: &'static str, without: u64, with: u64) -> Self {
        Self { label, cells: [number(without), number(with)], harm: None }
    }

    fn harm(label: &'static str, values: [u64; 2], show: fn(u64) -> String) -> Self {
        Self { label, cells: values.map(show), harm: Some(values.map(|value| value > 0)) }
    }
}

/// The live table.
pub(super) fn live(without: &Figures, with: &Figures, paint: Paint) -> String {
    let mut rows = traffic(without, with);
    rows.extend(ledger(without, with));
    rows.push(replayed(with));
    lay_out(&rows, paint)
}

/// The final table, from the verdicts.
pub(super) fn last(report: &DemoReport, paint: Paint) -> String {
    let (without, with) = (&report.without, &report.with);
    let figures: [Figures; 2] = [without.into(), with.into()];
    let [exposed, protected] = &figures;
    let mut rows = traffic(exposed, protected);
    let refused = [without.traffic.refused, with.traffic.refused];
    if refused != [0, 0] {
        let [without, with] = refused;
        rows.push(Row::plain("error responses", without, with));
    }
    rows.extend(ledger(exposed, protected));
    let missing = [without.verdict.missing, with.verdict.missing];
    rows.push(Row::harm("\"paid\" shown, but not charged", missing, number));
    let unanswered = [without.verdict.unanswered, with.verdict.unanswered];
    if unanswered != [0, 0] {
        rows.push(Row::harm("never answered", unanswered, number));
    }
    rows.push(replayed(protected));
    lay_out(&rows, paint)
}

/// One line for a file or a pipe.
pub(super) fn line(elapsed: Duration, without: &Figures, with: &Figures) -> String {
    let side = |figures: &Figures| {
        format!(
            "{} charges, {} doubled, {} too much",
            number(figures.charges),
            number(figures.doubled),
            dollars(figures.overcharged_cents)
        )
    };
    format!(
        "{:>3} s  {} taps | without onetake: {} | with onetake: {}, {} replayed",
        elapsed.as_secs(),
        number(with.taps),
        side(without),
        side(with),
        number(with.traffic.replayed)
    )
}

fn traffic(without: &Figures, with: &Figures) -> Vec<Row> {
    let sent = [without.traffic.requests, with.traffic.requests];
    let unheard = [without.traffic.unheard, with.traffic.unheard];
    vec![
        Row::plain("taps on \"Pay\"", without.taps, with.taps),
        Row::plain("requests sent, retries included", sent[0], sent[1]),
        Row::plain("responses that never arrived", unheard[0], unheard[1]),
    ]
}

fn ledger(without: &Figures, with: &Figures) -> Vec<Row> {
    let doubled = [without.doubled, with.doubled];
    let overcharged = [without.overcharged_cents, with.overcharged_cents];
    vec![
        Row::plain("charges in the ledger", without.charges, with.charges),
        Row::harm("taps charged twice or more", doubled, number),
        Row::harm("money overcharged", overcharged, dollars),
    ]
}

fn replayed(with: &Figures) -> Row {
    Row {
        label: "responses replayed by onetake",
        cells: ["-".to_owned(), number(with.traffic.replayed)],
        harm: None,
    }
}

fn lay_out(rows: &[Row], paint: Paint) -> String {
    let head = format!("  {:<LABEL$}{:>CELL$}{:>CELL$}", "", "without onetake", "with onetake");
    let rule = format!("  {}", "─".repeat(LABEL + 2 * CELL));
    let mut lines = vec![paint.bold(&head), paint.dim(&rule)];
    for Row { label, cells, harm } in rows {
        let mut line = format!("  {label:<LABEL$}");
        for (index, cell) in cells.iter().enumerate() {
            // Padded before it is coloured, because escape codes have no width.
            let padded = format!("{cell:>CELL$}");
            let harmed = harm.as_ref().and_then(|harm| harm.get(index));
            line.push_str(&match harmed {
                Some(true) => paint.bad(&padded),
                Some(false) => paint.good(&padded),
                None => padded,
            });
        }
        lines.push(line);
    }
    lines.push(paint.dim(&rule));
    lines.join("\n")
}

/// Formats `1234567` as `1,234,567`.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats cents as dollars.
pub(super) fn dollars(cents: u64) -> String {
    format!("${}.{:02}", number(cents / 100), cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::SideVerdict;

    #[test]
    fn money_is_written_as_money() {
        assert_eq!(dollars(0), "$0.00");
        assert_eq!(dollars(7), "$0.07");
        assert_eq!(dollars(99_999), "$999.99");
        assert_eq!(dollars(123_456_789), "$1,234,567.89");
        assert_eq!(number(1_000), "1,000");
    }

    #[test]
    fn tables_fit_in_80_columns_and_are_plain_when_asked() {
        let verdict = SideVerdict {
            taps: 600_000,
            charges: 1_234_567,
            doubled: 123_456,
            overcharged_cents: 1_234_567_890,
            missing: 2,
            unanswered: 1,
        };
        let traffic =
            PhoneTraffic { requests: 2_000_000, unheard: 100_000, refused: 3, replayed: 400_000 };
        let summary = Summary { verdict, traffic };
        let report = DemoReport {
            planned: 600_000,
            elapsed: Duration::from_secs(600),
            interrupted: false,
            without: summary,
            with: summary,
        };
        let table = last(&report, Paint { colours: false });
        assert!(table.lines().all(|line| line.chars().count() <= 76));
        assert!(!table.contains('\x1b'));
        assert!(table.contains("$12,345,678.90"));
        assert!(table.contains("never answered"));
        let coloured = last(&report, Paint { colours: true });
        assert!(coloured.contains("\x1b[1;31m"));
    }
}
