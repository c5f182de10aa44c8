//! Any content of a file or the environment leads to a configuration or a message, never to a
//! panic.

use super::*;

/// Xorshift random numbers: reproducible, and without a dependency.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % sides.max(1)
    }
}

const SNIPPETS: [&str; 24] = [
    "\"",
    "=",
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "\n",
    ".",
    "#",
    ",",
    "\\",
    "'''",
    "ö",
    "\u{0}",
    "99999999999999999999",
    "-1",
    "true",
    "1979-05-27T07:32:00Z",
    "inf",
    "[[route]]\n",
    "key.x = 1\n",
    "[defaults]\n",
];

pub(super) fn mutate(text: &str, dice: &mut Dice) -> String {
    let mut characters = text.chars().collect::<Vec<_>>();
    for _ in 0..=dice.roll(4) {
        let at = dice.roll(characters.len() + 1);
        let until = (at + dice.roll(12)).min(characters.len());
        let piece: Vec<char> = match dice.roll(4) {
            0 => Vec::new(),
            1 => SNIPPETS[dice.roll(SNIPPETS.len())].chars().collect(),
            2 => characters[at..until].iter().rev().copied().collect(),
            _ => {
                let from = dice.roll(characters.len());
                let to = (from + dice.roll(200)).min(characters.len());
                characters[from..to].to_vec()
            }
        };
        characters.splice(at..until, piece);
    }
    characters.into_iter().collect()
}

fn assert_answered(text: &str, variables: &[(&str, &str)]) -> bool {
    match load(Some(text), "onetake.toml", env(variables), Overrides::default()) {
        Ok(_) => true,
        Err(error) => {
            assert!(!error.problems().is_empty());
            for problem in error.problems() {
                assert!(!problem.what.is_empty() && !problem.fix.is_empty(), "{text}\n{error}");
            }
            assert!(!error.to_string().contains(['\u{0}', '\u{1b}', '\r']), "{text}\n{error}");
            false
        }
    }
}

#[test]
fn mutated_files_never_panic() {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut accepted = 0;
    for _ in 0..3000 {
        accepted += usize::from(assert_answered(&mutate(EXAMPLE, &mut dice), &[]));
    }
    // Both results must occur, or the mutations test nothing.
    assert!((30..2900).contains(&accepted), "{accepted}");
}

#[test]
fn mutated_values_never_panic() {
    let values = EXAMPLE.lines().filter_map(|line| line.split_once('=')).collect::<Vec<_>>();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2000 {
        let (name, _) = values[dice.roll(values.len())];
        let (_, value) = values[dice.roll(values.len())];
        let value = mutate(value, &mut dice);
        let variable = format!("ONETAKE__DEFAULTS__{}", name.trim().to_uppercase());
        assert_answered(EXAMPLE, &[(&variable, &value)]);
        assert_answered(&format!("[defaults]\n{name} = {value}\n"), &[]);
    }
}

#[test]
fn nesting_does_not_overflow_the_stack() {
    // The parser limits each kind of nesting to 80, but not one kind inside the other. The
    // remaining depth fits the stack of a main thread, even in an unoptimised build.
    let main = std::thread::Builder::new().stack_size(8 << 20);
    let check = main.spawn(|| {
        let dotted = format!("{}a = {{", "a.".repeat(78));
        let nested = format!("{}{}", dotted.repeat(79), "}".repeat(79));
        for text in [
            format!("[{}a]\n{nested}", "a.".repeat(78)),
            format!("a = {}", "[".repeat(100_000)),
            format!("a = {}", "{a=".repeat(100_000)),
            format!("{}a = 1", "a.".repeat(100_000)),
            format!("[{}a]", "a.".repeat(100_000)),
        ] {
            assert!(!assert_answered(&text, &[]));
            assert!(!assert_answered("", &[("ONETAKE__GATEWAY__LISTEN", &text)]));
        }
    });
    check.unwrap().join().unwrap();
    let name = format!("ONETAKE__DEFAULTS{}", "__A".repeat(100_000));
    assert!(!assert_answered("", &[(&name, "1")]));
}
