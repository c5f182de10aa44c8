//! The output of all clients.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Report;

/// Prints the table of scenarios by client, the effects, and the deliberate mistakes.
pub(super) fn print(report: &Report) {
    let text = |line: &Value, name: &str| line.get(name).and_then(Value::as_str).map(str::to_owned);
    let mut names: Vec<String> = Vec::new();
    let mut columns: Vec<String> = Vec::new();
    let mut cells: BTreeMap<(String, String), bool> = BTreeMap::new();
    for line in &report.scenarios {
        let (Some(name), Some(client)) = (text(line, "scenario"), text(line, "client")) else {
            continue;
        };
        if !names.contains(&name) {
            names.push(name.clone());
        }
        if !columns.contains(&client) {
            columns.push(client.clone());
        }
        cells.insert((name, client), line.get("ok") == Some(&Value::Bool(true)));
    }
    println!(
        "{:<36}{}",
        "scenario",
        columns.iter().map(|c| format!("{c:>20}")).collect::<String>()
    );
    for name in names {
        let cell = |client: &String| match cells.get(&(name.clone(), client.clone())) {
            Some(true) => "green",
            Some(false) => "RED",
            // The queue is one per language; adapters have none.
            None => "-",
        };
        println!(
            "{name:<36}{}",
            columns.iter().map(|c| format!("{:>20}", cell(c))).collect::<String>()
        );
    }
    println!("\neffects through a gateway that loses one response in three");
    report.effects.iter().for_each(|line| println!("{line}"));
    println!("\ndeliberate mistakes");
    report.breaks.iter().for_each(|line| println!("{line}"));
}
