//! Evaluators that are made of others.

use super::{Place, Verdict};
use crate::attempt::Attempt;
use crate::failure::Stop;
use polar_types::{EvaluatorSpec, HackLabel, WeightedEvaluator};

impl Attempt {
    pub(super) async fn evaluate_sum(
        &self,
        place: &Place<'_>,
        of: &[WeightedEvaluator],
    ) -> Result<Verdict, Stop> {
        let mut parts = Parts::default();
        let mut sum = 0.0;
        for part in of {
            match self.evaluate_part(place, &part.evaluator, &mut parts).await? {
                Some(reward) => sum += part.weight * reward,
                None => return Ok(parts.without_reward()),
            }
        }
        Ok(parts.with_reward(sum))
    }

    pub(super) async fn evaluate_all(
        &self,
        place: &Place<'_>,
        of: &[EvaluatorSpec],
    ) -> Result<Verdict, Stop> {
        let mut parts = Parts::default();
        let mut smallest = f64::INFINITY;
        for part in of {
            match self.evaluate_part(place, part, &mut parts).await? {
                Some(reward) => smallest = smallest.min(reward),
                None => return Ok(parts.without_reward()),
            }
        }
        Ok(parts.with_reward(smallest))
    }

    pub(super) async fn evaluate_first(
        &self,
        place: &Place<'_>,
        of: &[EvaluatorSpec],
    ) -> Result<Verdict, Stop> {
        let mut parts = Parts::default();
        for part in of {
            if let Some(reward) = self.evaluate_part(place, part, &mut parts).await? {
                return Ok(parts.with_reward(reward));
            }
        }
        Ok(parts.without_reward())
    }

    async fn evaluate_part(
        &self,
        place: &Place<'_>,
        part: &EvaluatorSpec,
        parts: &mut Parts,
    ) -> Result<Option<f64>, Stop> {
        let mut verdict = self.evaluate(place, part).await?;
        parts.labels.append(&mut verdict.labels);
        let reward = verdict.reward;
        parts.infos.push(verdict.info(part, place.kind));
        Ok(reward)
    }
}

/// What parts found so far.
#[derive(Default)]
struct Parts {
    infos: Vec<polar_types::GradeInfo>,
    labels: Vec<HackLabel>,
}

impl Parts {
    fn with_reward(self, reward: f64) -> Verdict {
        // What is worth knowing of a part is worth knowing of the whole.
        let note = self.infos.iter().find_map(|part| part.note.clone());
        Verdict { note, parts: self.infos, labels: self.labels, ..Verdict::of(reward) }
    }

    fn without_reward(self) -> Verdict {
        let last = self.infos.last();
        let why = last.and_then(|part| part.error.as_deref()).unwrap_or("it gave no reward");
        let name = last.map_or("none", |part| part.evaluator.as_str());
        let place = self.infos.len().saturating_sub(1);
        let error = format!("evaluator.of[{place}] ({name}): {why}");
        Verdict { parts: self.infos, labels: self.labels, ..Verdict::failed(error) }
    }
}
