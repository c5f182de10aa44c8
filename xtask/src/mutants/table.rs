//! The result of a run, as a table.

/// The results of the mutants of one scope.
#[derive(Debug, Default)]
pub(crate) struct Score {
    /// The scope.
    pub(crate) scope: &'static str,
    /// True if a survivor fails the run.
    pub(crate) is_strict: bool,
    /// Mutants that a test failed on.
    pub(crate) caught: usize,
    /// Mutants that do not compile, or do not fit into the program.
    pub(crate) unviable: usize,
    /// Mutants on which the tests did not end in time. They count as caught.
    pub(crate) timeout: usize,
    /// Survivors with an argument.
    pub(crate) argued: usize,
    /// Survivors without one.
    pub(crate) survivors: Vec<String>,
    /// Arguments for mutants that do not exist any more.
    pub(crate) stale: Vec<String>,
}

impl Score {
    /// The number of all tested mutants.
    fn mutants(&self) -> usize {
        self.caught + self.unviable + self.timeout + self.argued + self.survivors.len()
    }

    /// The percentage of caught mutants among those that a test could catch.
    fn per_cent(&self) -> f64 {
        let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let caught = self.caught + self.timeout;
        let all = caught + self.survivors.len();
        if all == 0 { 100.0 } else { 100.0 * number(caught) / number(all) }
    }

    /// True if this scope passes.
    pub(crate) fn is_good(&self) -> bool {
        self.stale.is_empty() && (!self.is_strict || self.survivors.is_empty())
    }
}

/// Returns the table, and below it every survivor and every stale argument.
pub(crate) fn show(scores: &[Score]) -> String {
    let mut lines = vec![row(&[
        "scope",
        "mutants",
        "caught",
        "unviable",
        "timeout",
        "argued",
        "survivors",
        "score",
    ])];
    for score in scores {
        let numbers = [
            score.mutants(),
            score.caught,
            score.unviable,
            score.timeout,
            score.argued,
            score.survivors.len(),
        ];
        let mut cells = vec![score.scope.to_owned()];
        cells.extend(numbers.iter().map(usize::to_string));
        cells.push(format!("{:.1} %", score.per_cent()));
        lines.push(row(&cells.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    for score in scores {
        lines.extend(score.survivors.iter().map(|name| format!("survived  {name}")));
        lines.extend(
            score.stale.iter().map(|name| {
                format!("argued, but there is no such mutant (delete the line)  {name}")
            }),
        );
    }
    lines.join("\n")
}

fn row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>9}")).collect();
    cells.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(is_strict: bool, survivors: &[&str]) -> Score {
        let survivors = survivors.iter().map(|&name| name.to_owned()).collect();
        Score { scope: "decide", is_strict, caught: 8, timeout: 1, survivors, ..Score::default() }
    }

    #[test]
    fn a_survivor_fails_a_strict_scope_only() {
        assert!(score(true, &[]).is_good());
        assert!(!score(true, &["a"]).is_good());
        assert!(score(false, &["a"]).is_good());
        let stale = Score { stale: vec!["b".to_owned()], ..score(false, &[]) };
        assert!(!stale.is_good());
    }

    #[test]
    fn survivors_are_named() {
        let shown = show(&[score(true, &["a.rs: replace"])]);
        assert!(shown.contains("90.0 %"), "{shown}");
        assert!(shown.contains("survived  a.rs: replace"), "{shown}");
    }
}
