//! An operator that settles unknown keys truthfully, and forgets settled ones.

use std::sync::Arc;

use onetake_core::engine::{Deed, Engine, Intervened, Intervention, Standing};
use onetake_core::{Failure, State};

use super::history::Truth;
use super::reconciler::recording_of;
use super::timeline::SECOND;
use super::world::World;

/// The author of its audit entries.
const NAME: &str = "operator";

/// Reads a key, and settles or forgets it.
pub async fn operate(world: Arc<World>, node: usize, engine: Engine, number: usize, forgets: bool) {
    let _probe = engine.ready().await;
    let Ok(page) = engine.page(None, 100).await else { return };
    let Some(id) = page.ids.get(number % page.ids.len().max(1)).copied() else { return };
    let Ok(mut found) = engine.inspect(vec![id]).await else { return };
    let Some(Ok(Some(record))) = found.pop() else { return };
    let _seen = (engine.find(id.reference()).await, engine.replays(&record));
    let fails = world.decide("operator", |random| random.chance(300));
    let deed = match &record.state {
        State::Running { .. } => return,
        State::Unknown { .. } => match world.history.truth(id, record.created_at) {
            Truth::Done(text) => Deed::Resolve(recording_of(&text)),
            Truth::NotDone if fails => {
                let (code, detail) = ("given_up".to_owned(), "an operator gave up".to_owned());
                Deed::Fail(Failure { code, detail })
            }
            Truth::NotDone if forgets => Deed::Forget { seen: Standing::Unknown },
            Truth::NotDone => Deed::Release,
            Truth::Working | Truth::OnItsWay => return,
        },
        State::Completed { .. } if forgets => Deed::Forget { seen: Standing::Completed },
        State::Failed { .. } if forgets => Deed::Forget { seen: Standing::Failed },
        State::Released { .. } if forgets => Deed::Forget { seen: Standing::Released },
        State::Completed { .. } | State::Failed { .. } | State::Released { .. } => return,
    };
    // The truth about an attempt does not change. The key may belong to another attempt by the time
    // the operator acts.
    let pause = world.decide("operator's pause", |random| {
        if random.chance(500) { 0 } else { random.below(3 * SECOND) }
    });
    world.timeline.sleep(pause, node + 1).await;
    let (by, reason) = (NAME.to_owned(), "simulated".to_owned());
    let forgot = matches!(deed, Deed::Forget { .. });
    let wanted = Intervention { id, attempt: record.attempt, deed, by, reason };
    if let Ok(Intervened::Done(_)) = engine.intervene(wanted).await {
        if forgot {
            world.history.told_forgotten(world.now(), node, id, record.attempt);
        }
        let notes = world.backend.notes(Some(id), None, 100);
        let is_noted = notes.is_ok_and(|notes| notes.notes.iter().any(|note| note.by == NAME));
        if !is_noted {
            let what = format!("{id:?} was settled by an operator without a note");
            world.history.violate(world.now(), "S20", what);
        }
    }
}
