//! The report as a JUnit file, for continuous integration.

use std::fmt::Write as _;

use super::report::{Finding, Report, Verdict};

/// The report as XML: a failed check is a failure, and a check that was not shown is skipped.
pub(super) fn junit(report: &Report) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string cannot fail.
    let _infallible = writeln!(
        out,
        "<testsuite name=\"onetake probe {}\" tests=\"{}\" failures=\"{}\" errors=\"0\" \
         skipped=\"{}\" time=\"{:.3}\">",
        escaped(&report.target),
        report.findings.len(),
        report.count(Verdict::Fail),
        report.count(Verdict::NotShown),
        report.took.as_secs_f64()
    );
    for Finding { check, verdict, evidence } in &report.findings {
        let (name, rule, evidence) = (check.name, escaped(check.rule), escaped(evidence));
        let _infallible = write!(out, "  <testcase classname=\"onetake.probe\" name=\"{name}\">");
        let _infallible = match verdict {
            Verdict::Pass => write!(out, "<system-out>{evidence}</system-out>"),
            Verdict::Fail => write!(out, "<failure message=\"{rule}\">{evidence}</failure>"),
            Verdict::NotShown => write!(out, "<skipped message=\"{evidence}\"/>"),
        };
        out.push_str("</testcase>\n");
    }
    out.push_str("</testsuite>\n");
    out
}

/// A text for an attribute or an element. Characters that XML cannot hold become spaces.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push(' '),
            char if char.is_control() => out.push(' '),
            char => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::report::{AT_ONCE, MISSING, NEW_KEY};
    use super::*;

    #[test]
    fn a_report_is_well_formed_xml_whatever_the_api_answered() {
        let findings = vec![
            NEW_KEY.pass("201 <&>\"\u{1}"),
            MISSING.fail("200 \u{ffff}"),
            AT_ONCE.not_shown("a\nb"),
        ];
        let target = "POST http://127.0.0.1/a?b&c".to_owned();
        let report = Report { target, findings, requests: 3, took: Duration::from_millis(1500) };
        let text = junit(&report);
        assert!(
            text.contains("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\" time=\"1.500\"")
        );
        assert!(
            text.contains("a?b&amp;c") && text.contains("201 &lt;&amp;&gt;&quot; </system-out>")
        );
        assert!(text.contains("<skipped message=\"a b\"/>"), "{text}");
    }
}
