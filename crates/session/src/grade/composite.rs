//! Evaluators that are made of others.

use super::parts::{joined, weighted};
use super::{Place, Verdict};
use crate::attempt::Attempt;
use crate::failure::Stop;
use polar_types::{EvaluatorSpec, HackLabel, PartRewards, WeightedEvaluator};

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
                Some(told) => {
                    sum += part.weight * told.reward;
                    let rewards = weighted(told.rewards, part.weight);
                    parts.rewards = joined(parts.rewards, rewards, |one, other| one + other);
                }
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
                Some(told) => {
                    smallest = smallest.min(told.reward);
                    parts.rewards = joined(parts.rewards, told.rewards, f64::min);
                }
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
            if let Some(told) = self.evaluate_part(place, part, &mut parts).await? {
                parts.rewards = told.rewards;
                return Ok(parts.with_reward(told.reward));
            }
        }
        Ok(parts.without_reward())
    }

    async fn evaluate_part(
        &self,
        place: &Place<'_>,
        part: &EvaluatorSpec,
        parts: &mut Parts,
    ) -> Result<Option<Told>, Stop> {
        let mut verdict = self.evaluate(place, part).await?;
        parts.labels.append(&mut verdict.labels);
        let rewards = verdict.rewards.clone();
        let told = verdict.reward.map(|reward| Told { reward, rewards });
        parts.infos.push(verdict.info(part, place.kind));
        Ok(told)
    }
}

/// The numbers that a part gave.
struct Told {
    reward: f64,
    rewards: PartRewards,
}

/// What parts found so far.
#[derive(Default)]
struct Parts {
    infos: Vec<polar_types::GradeInfo>,
    labels: Vec<HackLabel>,
    rewards: PartRewards,
}

impl Parts {
    fn with_reward(self, reward: f64) -> Verdict {
        // What is worth knowing of a part is worth knowing of the whole.
        let note = self.infos.iter().find_map(|part| part.note.clone());
        let (rewards, parts, labels) = (self.rewards, self.infos, self.labels);
        Verdict { note, rewards, parts, labels, ..Verdict::of(reward) }
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
