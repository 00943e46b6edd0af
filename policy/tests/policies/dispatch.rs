//! Guarantees of dispatching by usage.

use std::collections::BTreeMap;

use policy::dispatch::{Dispatch, OLDEST_EVERY};
use policy::unit::JobId;
use proptest::prelude::*;

const NO_JOB: JobId = JobId(0);

/// `Some`: a task of that job becomes ready; `None`: one runs.
fn events() -> impl Strategy<Value = Vec<Option<u32>>> {
    prop::collection::vec(prop_oneof![5 => (0u32..5).prop_map(Some), 4 => Just(None)], 1..400)
}

proptest! {
    #[test]
    fn every_task_runs_once_and_those_of_a_job_in_order(events in events(), by_usage in any::<bool>()) {
        let mut dispatch = Dispatch::new(by_usage);
        let mut used = BTreeMap::<JobId, u64>::new();
        let (mut ready, mut ran) = (Vec::new(), Vec::new());
        let drain = std::iter::repeat_n(None, events.len());
        for (number, event) in events.iter().copied().chain(drain).enumerate() {
            if let Some(job) = event {
                ready.push((JobId(job), number));
                dispatch.push(JobId(job), number, |job| used.get(&job).copied().unwrap_or(0));
            } else if let Some((job, task)) = dispatch.take_next() {
                let used = used.entry(job).or_default();
                *used += 1;
                dispatch.set_used(job, *used);
                ran.push((job, task));
            }
            prop_assert_eq!(dispatch.len(), ready.len() - ran.len());
        }
        prop_assert!(dispatch.is_empty());
        for job in (0..5).map(JobId) {
            let of_job = |tasks: &[(JobId, usize)]| tasks.iter().filter(|task| task.0 == job).copied().collect::<Vec<_>>();
            prop_assert_eq!(of_job(&ready), of_job(&ran));
        }
        if !by_usage {
            prop_assert_eq!(ready, ran);
        }
    }

    /// However much its job has used, and whatever arrives after it.
    #[test]
    fn every_wait_is_bounded(before in 0u32..40, arrive_in_between in 1u32..4, jobs in 2u32..9) {
        let used = |job: JobId| if job == JobId(1) { u64::MAX } else { 0 };
        let mut dispatch = Dispatch::new(true);
        for number in 0..before {
            dispatch.push(JobId(number % jobs), 0, used);
        }
        dispatch.push(JobId(1), 1, used);
        let mut others = 0;
        while let Some((_, 0)) = dispatch.take_next() {
            others += 1;
            prop_assert!(others <= OLDEST_EVERY * (before + 1), "{others} others went first");
            for number in 0..arrive_in_between {
                dispatch.push(JobId(2 + number), 0, used);
                dispatch.push(NO_JOB, 0, used);
            }
        }
    }

    /// Two jobs always have ready tasks, one a single one at a time, the other many: both run equally long.
    #[test]
    fn a_job_of_many_tasks_gets_no_more_than_one_of_a_single_task(many in 8usize..100, cost in 1u64..50) {
        let mut used = BTreeMap::from([(JobId(1), 0u64), (JobId(2), 0u64)]);
        let mut dispatch = Dispatch::new(true);
        for _ in 0..many {
            dispatch.push(JobId(2), (), |job| used[&job]);
        }
        dispatch.push(JobId(1), (), |job| used[&job]);
        for _ in 0..2000 {
            let (job, ()) = dispatch.take_next().expect("they are ready again and again");
            *used.get_mut(&job).expect("one of both") += cost;
            dispatch.set_used(job, used[&job]);
            dispatch.push(job, (), |job| used[&job]);
        }
        // One in eight runs by age, which favours the many.
        let share = used[&JobId(1)] as f64 / (used[&JobId(1)] + used[&JobId(2)]) as f64;
        prop_assert!(share > 0.4, "{share}");
    }
}

#[test]
fn tasks_without_a_job_run_first_and_then_the_job_that_used_least() {
    let used = |job: JobId| u64::from(job.0);
    let mut dispatch = Dispatch::new(true);
    for job in [3, 2, 0, 1] {
        dispatch.push(JobId(job), (), used);
    }
    let order: Vec<u32> = std::iter::from_fn(|| dispatch.take_next()).map(|(job, ())| job.0).collect();
    assert_eq!(order, [0, 1, 2, 3]);
}

#[test]
fn a_task_woken_by_a_completion_runs_at_once_unless_a_job_that_used_less_waits() {
    let used = |job: JobId| u64::from(job.0);
    let mut dispatch = Dispatch::new(true);
    dispatch.push(JobId(3), 'a', used);
    dispatch.push(JobId(3), 'b', used);
    assert_eq!(dispatch.take_newest(), Some((JobId(3), 'b')), "all are of one job");
    dispatch.push(JobId(2), 'c', used);
    assert_eq!(dispatch.take_newest(), Some((JobId(2), 'c')), "it used least");
    dispatch.push(JobId(1), 'd', used);
    dispatch.push(JobId(3), 'e', used);
    assert_eq!(dispatch.take_newest(), None, "the first has used less");
    dispatch.push(NO_JOB, 'f', used);
    assert_eq!(dispatch.take_newest(), Some((NO_JOB, 'f')));
    let order: Vec<char> = std::iter::from_fn(|| dispatch.take_next()).map(|(_, task)| task).collect();
    assert_eq!(order, ['d', 'a', 'e']);

    let mut dispatch = Dispatch::new(false);
    dispatch.push(JobId(1), 'a', used);
    dispatch.push(JobId(3), 'b', used);
    assert_eq!(dispatch.take_newest(), Some((JobId(3), 'b')), "usage is ignored");
}

#[test]
fn switching_usage_loses_no_task_and_without_it_they_run_in_order_of_arrival() {
    let used = |job: JobId| 10 - u64::from(job.0);
    let jobs = [1, 2, 0, 2, 1, 3].map(JobId);
    let mut dispatch = Dispatch::new(false);
    for (number, job) in jobs.into_iter().enumerate() {
        dispatch.push(job, number, used);
    }
    dispatch.set_by_usage(true, used);
    assert_eq!((dispatch.len(), dispatch.take_next()), (6, Some((NO_JOB, 2))));
    assert_eq!(dispatch.take_next(), Some((JobId(3), 5)));
    dispatch.set_by_usage(false, used);
    let order: Vec<usize> = std::iter::from_fn(|| dispatch.take_next()).map(|(_, task)| task).collect();
    assert_eq!(order, [0, 1, 3, 4]);
}
