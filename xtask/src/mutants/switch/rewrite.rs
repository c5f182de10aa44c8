//! A source file with all its mutants at once, each behind a switch.
//!
//! `a < b` becomes `(if !(is(7) || is(8)) { a < b } else if is(7) { a <= b } else { a > b })`: the
//! program is built once, and an environment variable chooses the mutant. Code that cannot be
//! written this way (a constant, a condition with `let`) is changed alone, with its own build.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::Value;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The function that returns true if a mutant is switched on.
pub(crate) const IS: &str = "crate::__mutants::is";

/// The environment variable with the number of the mutant.
pub(crate) const VARIABLE: &str = "ONETAKE_MUTANT";

/// The text that is appended to the root of a crate with rewritten files.
pub(crate) const SWITCH: &str = r#"
#[doc(hidden)]
pub mod __mutants {
    static CHOSEN: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        std::env::var("ONETAKE_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    });

    #[inline]
    pub fn is(number: u32) -> bool {
        *CHOSEN == number
    }
}
"#;

/// The text that is inserted at the start of such a root.
pub(crate) const QUIET: &str = "#![allow(warnings, clippy::all, clippy::pedantic)]\n";

/// One change of one place, as cargo-mutants lists it.
#[derive(Clone, Debug)]
pub(super) struct Mutant {
    /// The number that switches it on, from 1.
    pub(super) number: u32,
    /// Cargo-mutants' name for it.
    pub(super) name: String,
    /// The file, from the root.
    pub(super) file: String,
    genre: String,
    replacement: String,
    /// The line and column of its first character, both from 1.
    start: (usize, usize),
    /// The same of the character after its last one.
    end: (usize, usize),
}

impl Mutant {
    /// Reads one entry of `cargo mutants --list --json`.
    pub(super) fn read(number: u32, entry: &Value) -> Option<Self> {
        let text = |field: &str| Some(entry.get(field)?.as_str()?.to_owned());
        let at = |place: &str| usize::try_from(entry.pointer(place)?.as_u64()?).ok();
        Some(Self {
            number,
            name: text("name")?,
            file: text("file")?,
            genre: text("genre")?,
            replacement: text("replacement")?,
            start: (at("/span/start/line")?, at("/span/start/column")?),
            end: (at("/span/end/line")?, at("/span/end/column")?),
        })
    }

    /// Returns the source with this change alone, without a switch.
    pub(super) fn applied(&self, source: &str) -> Option<String> {
        let starts = line_starts(source);
        let (start, end) = (byte(source, &starts, self.start)?, byte(source, &starts, self.end)?);
        // The space separates the new text from a word behind it.
        Some(format!("{}{} {}", source.get(..start)?, self.replacement, source.get(end..)?))
    }
}

/// A rewritten file.
#[derive(Debug, Default)]
pub(super) struct Rewritten {
    pub(super) text: String,
    pub(super) parts: Vec<Part>,
    /// Mutants that are not in it.
    pub(super) left_out: BTreeSet<u32>,
}

/// Bytes of a rewritten file that were not in its source.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) range: Range<usize>,
    pub(super) mutants: Vec<u32>,
    /// True for the changed code itself, false for the switch around it.
    pub(super) is_change: bool,
    /// True if an arm of a match can be switched off.
    pub(super) is_arm: bool,
}

/// Puts mutants of one file behind switches.
pub(super) fn rewrite(source: &str, mutants: &[&Mutant]) -> Result<Rewritten, String> {
    let parsed = syn::parse_file(source).map_err(|error| error.to_string())?;
    let mut finder =
        Finder { source, by_place: BTreeMap::new(), is_constant: false, places: Vec::new() };
    let starts: Vec<usize> = line_starts(source);
    for mutant in mutants {
        let start = byte(source, &starts, mutant.start).ok_or("a mutant is outside of its file")?;
        finder.by_place.entry((mutant.genre.as_str(), start)).or_default().push(mutant);
    }
    finder.visit_file(&parsed);
    let mut places = finder.places;
    places.sort_by_key(|place| {
        let is_wide = place.range.start != place.range.end;
        (place.range.start, is_wide, Reverse(place.range.end), place.rank())
    });
    let mut left_out: BTreeSet<u32> = mutants.iter().map(|mutant| mutant.number).collect();
    for number in places.iter().flat_map(SwitchSite::numbers) {
        left_out.remove(&number);
    }
    let mut writer = Writer { source, rewritten: Rewritten { left_out, ..Rewritten::default() } };
    writer.write(0..source.len(), &places);
    Ok(writer.rewritten)
}

fn line_starts(source: &str) -> Vec<usize> {
    std::iter::once(0).chain(source.match_indices('\n').map(|(at, _)| at + 1)).collect()
}

fn byte(source: &str, starts: &[usize], (line, column): (usize, usize)) -> Option<usize> {
    let start = *starts.get(line.checked_sub(1)?)?;
    let signs = source.get(start..)?.char_indices();
    signs.map(|(at, _)| start + at).nth(column.checked_sub(1)?)
}

/// A place of the source with its mutants: their numbers and the texts that replace it.
#[derive(Debug)]
struct SwitchSite {
    range: Range<usize>,
    kind: SiteKind,
    mutants: Vec<(u32, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SiteKind {
    /// Returns from a function at its beginning.
    Return,
    /// A pattern without a condition: its arm is left out.
    Pattern,
    /// The condition of an arm that is left out.
    Arm,
    /// One of several expressions.
    Choice,
}

impl SwitchSite {
    /// The nesting of places with the same range: the one with the lower rank is outside.
    fn rank(&self) -> u8 {
        match self.kind {
            SiteKind::Return | SiteKind::Pattern | SiteKind::Arm => 0,
            SiteKind::Choice => 1,
        }
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        self.mutants.iter().map(|(number, _)| *number)
    }
}

/// Finds the places of mutants in a parsed file.
struct Finder<'a> {
    source: &'a str,
    by_place: BTreeMap<(&'a str, usize), Vec<&'a Mutant>>,
    /// True in code that runs at compile time.
    is_constant: bool,
    places: Vec<SwitchSite>,
}

impl<'a> Finder<'a> {
    fn take(&mut self, genre: &'static str, start: usize) -> Vec<&'a Mutant> {
        if self.is_constant {
            return Vec::new();
        }
        self.by_place.remove(&(genre, start)).unwrap_or_default()
    }

    fn add(&mut self, kind: SiteKind, range: Range<usize>, mutants: Vec<(u32, String)>) {
        if !mutants.is_empty() {
            self.places.push(SwitchSite { range, kind, mutants });
        }
    }

    fn in_constant(&mut self, visit: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.is_constant, true);
        visit(self);
        self.is_constant = before;
    }

    fn text(&self, range: Range<usize>) -> &'a str {
        self.source.get(range).unwrap_or_default()
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let Some(first) = block.stmts.first() else { return };
        let returns = match &signature.output {
            syn::ReturnType::Default => "",
            syn::ReturnType::Type(_, kind) => self.text(kind.span().byte_range()),
        };
        if signature.constness.is_some() || returns.contains("impl ") {
            return;
        }
        let mutants = self.take("FnValue", first.span().byte_range().start);
        let returned = mutants.iter().map(|mutant| (mutant.number, mutant.replacement.clone()));
        let at = block.brace_token.span.open().byte_range().end;
        self.add(SiteKind::Return, at..at, returned.collect());
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        let (whole, sign) = (node.span().byte_range(), node.op.span().byte_range());
        if !has_let(&node.left) && !has_let(&node.right) {
            let mutants = self.take("BinaryOperator", sign.start);
            let left = self.text(whole.start..sign.start);
            let right = self.text(sign.end..whole.end);
            let changed = mutants
                .iter()
                .map(|mutant| (mutant.number, format!("{left}{}{right}", mutant.replacement)));
            self.add(SiteKind::Choice, whole, changed.collect());
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        let whole = node.span().byte_range();
        let mutants = self.take("UnaryOperator", whole.start);
        let inner = self.text(node.expr.span().byte_range());
        let changed =
            mutants.iter().map(|mutant| (mutant.number, format!("{}{inner}", mutant.replacement)));
        self.add(SiteKind::Choice, whole, changed.collect());
        visit::visit_expr_unary(self, node);
    }

    fn visit_arm(&mut self, node: &'ast syn::Arm) {
        let condition = node.guard.as_ref().map(|(_, condition)| condition);
        if condition.is_none_or(|condition| !has_let(condition)) {
            let left_out = self.take("MatchArm", node.span().byte_range().start);
            let left_out = left_out.iter().map(|mutant| (mutant.number, String::new())).collect();
            match condition {
                None => self.add(SiteKind::Pattern, node.pat.span().byte_range(), left_out),
                Some(condition) => {
                    let range = condition.span().byte_range();
                    self.add(SiteKind::Arm, range.clone(), left_out);
                    let mutants = self.take("MatchArmGuard", range.start);
                    let changed =
                        mutants.iter().map(|mutant| (mutant.number, mutant.replacement.clone()));
                    self.add(SiteKind::Choice, range, changed.collect());
                }
            }
        }
        visit::visit_arm(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'ast syn::ExprStruct) {
        let whole = node.span().byte_range();
        let mut changed = Vec::new();
        for field in node.fields.pairs() {
            let range = field.value().span().byte_range();
            let end = field.punct().map_or(range.end, |comma| comma.span().byte_range().end);
            let mutants = self.take("StructField", range.start);
            let (left, right) = (self.text(whole.start..range.start), self.text(end..whole.end));
            changed.extend(mutants.iter().map(|one| (one.number, format!("{left}{right}"))));
        }
        self.add(SiteKind::Choice, whole, changed);
        visit::visit_expr_struct(self, node);
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.function(&node.sig, &node.block);
        if node.sig.constness.is_some() {
            self.in_constant(|finder| visit::visit_item_fn(finder, node));
        } else {
            visit::visit_item_fn(self, node);
        }
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.function(&node.sig, &node.block);
        if node.sig.constness.is_some() {
            self.in_constant(|finder| visit::visit_impl_item_fn(finder, node));
        } else {
            visit::visit_impl_item_fn(self, node);
        }
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        if let Some(block) = &node.default {
            self.function(&node.sig, block);
        }
        visit::visit_trait_item_fn(self, node);
    }

    fn visit_item_const(&mut self, node: &'ast syn::ItemConst) {
        self.in_constant(|finder| visit::visit_item_const(finder, node));
    }

    fn visit_item_static(&mut self, node: &'ast syn::ItemStatic) {
        self.in_constant(|finder| visit::visit_item_static(finder, node));
    }

    fn visit_impl_item_const(&mut self, node: &'ast syn::ImplItemConst) {
        self.in_constant(|finder| visit::visit_impl_item_const(finder, node));
    }

    fn visit_expr_const(&mut self, node: &'ast syn::ExprConst) {
        self.in_constant(|finder| visit::visit_expr_const(finder, node));
    }

    fn visit_type_array(&mut self, node: &'ast syn::TypeArray) {
        self.in_constant(|finder| visit::visit_type_array(finder, node));
    }
}

/// Returns true for `let` and for a chain with `let` in it, which are valid only as a condition.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(node) if matches!(node.op, syn::BinOp::And(_)) => {
            has_let(&node.left) || has_let(&node.right)
        }
        _ => false,
    }
}

/// Writes the source with the switches in it.
struct Writer<'a> {
    source: &'a str,
    rewritten: Rewritten,
}

impl Writer<'_> {
    fn push(&mut self, text: &str) {
        self.rewritten.text.push_str(text);
    }

    fn copy(&mut self, range: Range<usize>) {
        let source = self.source;
        self.push(source.get(range).unwrap_or_default());
    }

    fn write(&mut self, range: Range<usize>, places: &[SwitchSite]) {
        let mut at = range.start;
        let mut left = places;
        while let Some((place, others)) = left.split_first() {
            self.copy(at..place.range.start);
            let inside = others.iter().take_while(|other| other.range.start < place.range.end);
            let (inside, others) = others.split_at(inside.count());
            self.place(place, inside);
            at = place.range.end;
            left = others;
        }
        self.copy(at..range.end);
    }

    fn place(&mut self, place: &SwitchSite, inside: &[SwitchSite]) {
        let start = self.rewritten.text.len();
        let part = self.rewritten.parts.len();
        let numbers: Vec<u32> = place.numbers().collect();
        self.rewritten.parts.push(Part {
            range: start..start,
            mutants: numbers.clone(),
            is_change: false,
            is_arm: matches!(place.kind, SiteKind::Pattern | SiteKind::Arm),
        });
        let any: Vec<String> = numbers.iter().map(|number| format!("{IS}({number})")).collect();
        let any = any.join(" || ");
        match place.kind {
            SiteKind::Return => {
                for (number, text) in &place.mutants {
                    self.push(&format!(" if {IS}({number}) {{ return "));
                    self.changed(*number, text);
                    self.push("; }");
                }
            }
            SiteKind::Pattern => {
                self.write(place.range.clone(), inside);
                self.push(&format!(" if !({any})"));
            }
            SiteKind::Arm => {
                self.push(&format!("!({any}) && ("));
                self.write(place.range.clone(), inside);
                self.push(")");
            }
            SiteKind::Choice => {
                self.push(&format!("(if !({any}) {{ "));
                self.write(place.range.clone(), inside);
                self.push(" }");
                for (at, (number, text)) in place.mutants.iter().enumerate() {
                    let is_last = at + 1 == place.mutants.len();
                    self.push(&if is_last {
                        " else { ".to_owned()
                    } else {
                        format!(" else if {IS}({number}) {{ ")
                    });
                    self.changed(*number, text);
                    self.push(" }");
                }
                self.push(")");
            }
        }
        let end = self.rewritten.text.len();
        if let Some(part) = self.rewritten.parts.get_mut(part) {
            part.range.end = end;
        }
    }

    fn changed(&mut self, number: u32, text: &str) {
        let start = self.rewritten.text.len();
        self.push(text);
        let end = self.rewritten.text.len();
        self.rewritten.parts.push(Part {
            range: start..end,
            mutants: vec![number],
            is_change: true,
            is_arm: false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(number: u32, genre: &str, replacement: &str, line: usize, column: usize) -> Mutant {
        let (name, file) = (format!("{number}"), "a.rs".to_owned());
        let (genre, replacement) = (genre.to_owned(), replacement.to_owned());
        let (start, end) = ((line, column), (line, column + 1));
        Mutant { number, name, file, genre, replacement, start, end }
    }

    fn rewritten(source: &str, mutants: &[Mutant]) -> Rewritten {
        rewrite(source, &mutants.iter().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn operators_inside_operators_are_switched() {
        let source = "fn f(a: u8, b: u8) -> bool { a + 1 < b }";
        let mutants = [
            mutant(1, "BinaryOperator", "-", 1, 32),
            mutant(2, "BinaryOperator", "<=", 1, 36),
            mutant(3, "BinaryOperator", ">", 1, 36),
        ];
        let is = IS;
        assert_eq!(
            rewritten(source, &mutants).text,
            format!(
                "fn f(a: u8, b: u8) -> bool {{ (if !({is}(2) || {is}(3)) {{ (if !({is}(1)) {{ a + 1 }} else {{ a - 1 }}) < b }} else if {is}(2) {{ a + 1 <= b }} else {{ a + 1 > b }}) }}"
            )
        );
    }

    #[test]
    fn arms_conditions_and_functions_are_switched() {
        let source = "fn f(a: u8) -> u8 { match a { 1 if a > 0 => 2, 3 => 4, _ => 5 } }";
        let mutants = [
            mutant(1, "FnValue", "7", 1, 21),
            mutant(2, "MatchArm", "", 1, 31),
            mutant(3, "MatchArmGuard", "true", 1, 36),
            mutant(4, "MatchArm", "", 1, 48),
        ];
        let is = IS;
        assert_eq!(
            rewritten(source, &mutants).text,
            format!(
                "fn f(a: u8) -> u8 {{ if {is}(1) {{ return 7; }} match a {{ 1 if !({is}(2)) && ((if !({is}(3)) {{ a > 0 }} else {{ true }})) => 2, 3 if !({is}(4)) => 4, _ => 5 }} }}"
            )
        );
    }

    #[test]
    fn fields_are_switched() {
        let source = "fn f(a: A) -> A { A { b: 1 + 2, c: 3, ..a } }";
        let mutants = [
            mutant(1, "StructField", "", 1, 23),
            mutant(2, "StructField", "", 1, 33),
            mutant(3, "BinaryOperator", "-", 1, 28),
        ];
        let is = IS;
        assert_eq!(
            rewritten(source, &mutants).text,
            format!(
                "fn f(a: A) -> A {{ (if !({is}(1) || {is}(2)) {{ A {{ b: (if !({is}(3)) {{ 1 + 2 }} else {{ 1 - 2 }}), c: 3, ..a }} }} else if {is}(1) {{ A {{  c: 3, ..a }} }} else {{ A {{ b: 1 + 2,  ..a }} }}) }}"
            )
        );
    }

    #[test]
    fn what_runs_at_compile_time_is_left_out() {
        let source = "const A: u8 = 1 + 2;\nfn f(a: Option<u8>) -> bool { if let Some(a) = a && a > 1 { true } else { false } }";
        let mutants = [
            mutant(1, "BinaryOperator", "-", 1, 17),
            mutant(2, "BinaryOperator", "||", 2, 50),
            mutant(3, "BinaryOperator", "<", 2, 55),
        ];
        assert_eq!(rewritten(source, &mutants).left_out, BTreeSet::from([1, 2]));
    }

    #[test]
    fn a_mutant_is_applied_alone() {
        let source = "const A: u8 = 1 +\n    2 + 3;";
        let alone = mutant(1, "BinaryOperator", "*", 2, 7).applied(source);
        assert_eq!(alone.as_deref(), Some("const A: u8 = 1 +\n    2 *  3;"));
    }

    #[test]
    fn parts_tell_which_mutant_a_byte_belongs_to() {
        let source = "fn f(a: u8) -> u8 { a + 1 }";
        let rewritten = rewritten(source, &[mutant(9, "BinaryOperator", "/", 1, 23)]);
        let part = rewritten.parts.last().unwrap();
        let changed = &rewritten.text[part.range.clone()];
        assert_eq!((changed, part.mutants.as_slice()), ("a / 1", &[9][..]));
    }
}
