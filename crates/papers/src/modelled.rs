//! An experiment on a modelled machine: each figure predicted, fitted or modelled.
//!
//! On the paper's machine the fit comes first; its points are *fitted*, all other figures are
//! *predicted*, and each prediction is repeated with every assumed cost at ±25 %. On another machine
//! the costs come from its profile, and figures are *modelled*. Costs and their sources are data:
//! `crates/sim/profiles`.

use crate::testbeds::testbed;
use picnic_core::error::ConfigError;
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::fit::Testbed;
use picnic_lab::outcome::{Figure, Outcome, Point, Source};
use picnic_lab::paper::Row;
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_sim::machine::{Profile, Source as Basis};
use serde::Serialize;
use serde_json::Value;

/// A curve of the paper, on the machine with its fitted costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Curve {
    /// The series of its points.
    pub(crate) series: &'static str,
    /// Its points.
    pub(crate) points: fn(&Profile, Effort) -> Result<Vec<Point>, String>,
    /// How they are drawn.
    pub(crate) plot: fn() -> Plot,
}

/// Points of a curve: values of `key` along `x`.
pub(crate) fn along(x: &str, key: &str, values: Vec<(f64, f64)>) -> Vec<Point> {
    let point = |(at, value): (f64, f64)| {
        // Whole numbers stay whole in names.
        let at = if at.fract() == 0.0 { Value::from(at as i64) } else { Value::from(at) };
        Point::at(x, at).with(Figure::one(key, value))
    };
    values.into_iter().map(point).collect()
}

#[derive(Debug)]
struct OnMachine {
    row: Row,
    testbed: Testbed,
    curve: Option<Curve>,
    settings: Value,
    /// Predictions are repeated at other costs.
    is_varied: bool,
}

/// The experiment on a machine if `world` is sim; none if it is host.
///
/// # Errors
/// There is no such machine, it has too few cores, or a machine is named with `world = "host"`.
pub(crate) fn on_machine<E: Reproduces>(
    world: World,
    profile: Option<&str>,
    settings: &impl Serialize,
    curve: Option<Curve>,
) -> Result<Option<Box<dyn Experiment>>, ConfigError> {
    let wrong = |message: String| ConfigError::new("profile", message);
    if world == World::Host {
        return match profile {
            Some(name) => Err(wrong(format!(
                "found \"{name}\" with world = \"host\", allowed only with \"sim\""
            ))),
            None => Ok(None),
        };
    }
    let row = E::PAPER.named(E::NAME);
    let Some(machine) = row.machine else {
        return Err(ConfigError::new("world", "found \"sim\", allowed: \"host\""));
    };
    let name = profile.unwrap_or(machine.profile);
    let testbed = testbed(name).map_err(|error| wrong(error.to_string()))?;
    let cores = testbed.profile.cores();
    if cores < machine.cores {
        return Err(wrong(format!(
            "found \"{name}\" with {cores} cores, allowed: {} cores or more, as \"{}\" has",
            machine.cores, machine.profile
        )));
    }
    let settings = serde_json::to_value(settings).unwrap_or_default();
    let is_varied = settings["vary"] != false;
    Ok(Some(Box::new(OnMachine { row, testbed, curve, settings, is_varied })))
}

impl OnMachine {
    /// Whether the paper's figures were measured on this machine.
    fn is_papers(&self) -> bool {
        self.row.machine.is_some_and(|machine| machine.profile == self.testbed.profile.name)
    }

    /// Of the paper's machine: fit points and predictions.
    fn predicted(&self, run: &mut Run<'_>) -> Result<(Outcome, Profile), String> {
        let effort = run.effort;
        let mut watch = |share: f64, what: &str| run.progress(share, what);
        let mut testbed = self.testbed.clone();
        if !self.is_varied {
            testbed.profile.figures.retain(|of| of.source != Basis::Assumed);
        }
        let fit = testbed.predict(Some(self.row.name), effort, &mut watch)?;
        let mut outcome = Outcome::of(Source::Predicted);
        let own = self.row.figures.iter().filter_map(|figure| figure.ours);
        let mut figures: Vec<Figure> = fit.fitted.iter().map(|fitted| fitted.figure()).collect();
        figures.extend(fit.predictions.iter().map(|prediction| prediction.figure()));
        for key in own {
            let found = figures.iter().find(|figure| figure.key == key);
            found.into_iter().for_each(|figure| outcome.add(figure.clone()));
        }
        for fitted in &fit.fitted {
            let ([cost, paper, ours], point) = (fitted.texts(), &fitted.point);
            let note = format!("fitted: {cost}, so that {point} is {ours}; the paper has {paper}");
            outcome.note(note);
        }
        Ok((outcome, fit.machine))
    }

    /// Of another machine: costs as its profile has them.
    fn modelled(&self, run: &mut Run<'_>) -> Result<(Outcome, Profile), String> {
        let mut outcome = Outcome::of(Source::Modelled);
        let profile = &self.testbed.profile;
        for figure in self.row.figures {
            let (Some(model), Some(key)) = (figure.model, figure.ours) else { continue };
            run.progress(0.0, figure.what);
            let value = (model.run)(profile, run.effort)?;
            outcome.add(Figure::one(key, value).called(figure.what));
        }
        outcome.note(format!("not the paper's machine: {}", profile.help));
        Ok((outcome, profile.clone()))
    }
}

impl Experiment for OnMachine {
    fn points(&self, _: Effort) -> Vec<Spec> {
        vec![Spec::at("profile", self.testbed.profile.name.clone())]
    }

    fn measure(&self, _: &Spec, _: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let found = match self.is_papers() {
            true => self.predicted(run),
            false => self.modelled(run),
        };
        let name = &self.testbed.profile.name;
        let failed = |why: String| LabError::Failed(format!("profile {name}: {why}"));
        let (mut outcome, machine) = found.map_err(failed)?;
        if let Some(curve) = self.curve {
            let points = (curve.points)(&machine, run.effort).map_err(failed)?;
            let mut series = outcome.series(curve.series);
            points.into_iter().for_each(|point| series.push(point));
        }
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut outcome = points.iter().flat_map(|p| &p.sides).next().cloned().unwrap_or_default();
        outcome.settings = self.settings.clone();
        outcome.settings["profile"] = self.testbed.profile.name.clone().into();
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        self.curve.iter().map(|curve| (curve.plot)()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picnic_latency::{PicnicLatency, Settings};
    use crate::registry::experiment;
    use crate::testbeds::netburst;
    use picnic_lab::compare::Finding;
    use picnic_lab::registry::build;
    use picnic_lab::runner;
    use picnic_sim::machine::{Cost, Source as From};

    fn refused(name: &str, settings: &[(&str, &str)]) -> String {
        let settings: Vec<_> =
            settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        build(experiment(name).unwrap(), &settings).err().unwrap().to_string()
    }

    #[test]
    fn wrong_machines_are_refused_before_anything_runs() {
        for (name, settings, wanted) in [
            ("picnic-latency", &[("profile", "netbrust")][..], "found profile \"netbrust\""),
            (
                "rss-web",
                &[("profile", "netburst")],
                "found \"netburst\" with 4 cores, allowed: 8 cores or more, as \"x5355\" has",
            ),
            (
                "knet-livelock",
                &[("profile", "piii"), ("world", "host")],
                "found \"piii\" with world = \"host\", allowed only with \"sim\"",
            ),
            ("knet-pages", &[("world", "sim")], "world: found \"sim\", allowed: \"host\""),
        ] {
            let error = refused(name, settings);
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn on_another_machine_figures_are_modelled_and_on_the_papers_predicted_or_fitted() {
        let run = |experiment: &dyn Experiment| {
            runner::outcome("picnic-latency", experiment, Effort::Quick, &mut |_, _| {})
        };
        let at = |profile: &str| {
            let profile = Some(profile);
            let built =
                on_machine::<PicnicLatency>(World::Sim, profile, &Settings::default(), None);
            built.unwrap().unwrap()
        };
        let other = run(&*at("x5355")).unwrap();
        assert_eq!(other.fields()["figures_are"], "modelled");
        assert!(other.notes.iter().any(|note| note.starts_with("not the paper's machine")));
        assert!(other.median("extra_at_80000_pps_ns").unwrap() > 0.0);

        // On the paper's machine, with two figures and few assumed costs, to be quick.
        let curve = Curve {
            series: "loads",
            points: |profile, effort| {
                let full = netburst::full_pps(profile, effort)?;
                Ok(along("offered_pps", "delivered_pps", vec![(6e5, full)]))
            },
            plot: || Plot::lines("", "loads", "offered_pps", "delivered_pps"),
        };
        let row = PicnicLatency::PAPER.named("picnic-latency");
        let mut testbed = testbed("netburst").unwrap();
        let figures: &[_] = &row.figures[..2];
        testbed.measures.retain(|measure| figures.iter().any(|of| of.what == measure.figure.what));
        let way = Cost::InterruptWay.key();
        testbed.profile.figures.retain(|of| of.source != From::Assumed || of.key == way);
        let settings = serde_json::json!({});
        let row = Row { figures, ..row };
        let own = OnMachine { row, testbed, curve: Some(curve), settings, is_varied: true };
        let own = run(&own).unwrap();
        let judged = |place: usize| {
            let figure = &own.whole.figures[place];
            (figure.source.label(), figures[place].judge(figure).unwrap().finding)
        };
        assert_eq!(judged(0), ("fitted", Finding::Fitted));
        assert_eq!(judged(1), ("predicted", Finding::Reproduced));
        assert!(own.notes[0].starts_with("fitted: card_packet_ns = "), "{:?}", own.notes);
        assert_eq!(own.settings["profile"], "netburst");
        assert_eq!(own.series[0].points.len(), 1);
    }
}
