use super::*;
use crate::double::{Gate, Server, Target, Verdict};
use tokio::{sync::oneshot, task::JoinHandle};

const DURATION: Duration = Duration::from_secs(15);

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// A process that wants to lead.
struct Candidate {
    leadership: Leadership,
    standing: watch::Receiver<Standing>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Candidate {
    fn elector(server: &Server, name: &str) -> Elector {
        let settings = LeaseSettings {
            namespace: "system".into(),
            name: "operator".into(),
            identity: name.into(),
            duration: DURATION,
        };
        Elector::new(server.client(), settings)
    }

    fn start(server: &Server, name: &str) -> Self {
        let elector = Self::elector(server, name);
        let (leadership, standing) = (elector.leadership(), elector.standing());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(elector.run(async {
            let _ = stopped.await;
        }));
        Self {
            leadership,
            standing,
            stop: Some(stop),
            task,
        }
    }

    fn may_act(&self) -> bool {
        self.leadership.permit(1).is_some_and(|p| p.is_good())
    }

    /// Waits until it leads; answers with how long that took.
    async fn leads(&mut self) -> Duration {
        let begun = Instant::now();
        let led = self.standing.wait_for(|s| *s == Standing::Leading);
        let led = tokio::time::timeout(secs(300), led).await;
        assert!(led.is_ok_and(|led| led.is_ok()), "it does not lead");
        begun.elapsed()
    }
}

/// Treats every request of one way the same.
struct Always(Verdict);

#[async_trait::async_trait]
impl Gate for Always {
    async fn judge(&self, _: &Target) -> Verdict {
        self.0
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_two_leads_and_hands_over_at_once_when_it_stops() {
    let server = Server::new();
    let mut one = Candidate::start(&server, "one");
    one.leads().await;
    let mut two = Candidate::start(&server, "two");
    tokio::time::sleep(secs(60)).await;
    assert!(one.may_act() && !two.may_act());
    assert_eq!(*two.standing.borrow(), Standing::Following("one".into()));

    drop(one.stop.take());
    (&mut one.task).await.unwrap();
    assert!(!one.may_act());
    let took = two.leads().await;
    assert!(took <= secs(2), "it took {took:?}");
    assert!(two.may_act());
}

/// Refuses every other write as a conflict: somebody annotates the Lease all the time.
struct Touched(std::sync::atomic::AtomicU32);

#[async_trait::async_trait]
impl Gate for Touched {
    async fn judge(&self, target: &Target) -> Verdict {
        let count = || self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if target.verb.is_write() && count().is_multiple_of(2) {
            return Verdict::Refuse(409);
        }
        Verdict::Pass
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_is_touched_by_someone_leads_on() {
    let server = Server::new();
    let mut one = Candidate::start(&server, "one");
    one.leads().await;
    server.set_gate(Some(Arc::new(Touched(0.into()))));
    one.standing.mark_unchanged();
    tokio::time::sleep(secs(120)).await;
    assert!(one.may_act());
    assert!(!one.standing.has_changed().unwrap(), "it never doubted");
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_followed_within_the_lease_and_never_before_its_permits_ended() {
    let server = Server::new();
    let mut one = Candidate::start(&server, "one");
    one.leads().await;
    let mut two = Candidate::start(&server, "two");
    tokio::time::sleep(secs(30)).await;
    one.task.abort();
    let took = two.leads().await;
    assert!(!one.may_act(), "two may act");
    assert!(took <= DURATION + secs(4), "it took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_frozen_leader_has_no_permit_when_it_wakes() {
    let server = Server::new();
    let mut elector = Candidate::elector(&server, "one");
    elector.turn().await;
    let leadership = elector.leadership();
    let early = leadership.permit(1).expect("it leads");
    let ends = early.not_after();
    assert!(ends <= Instant::now() + DURATION - MARGIN);
    // The clock that runs on in sleep is the machine's own also here: some way beyond.
    tokio::time::sleep_until(ends + secs(1)).await;
    assert!(!early.is_good() && leadership.permit(1).is_none());
}

#[tokio::test(start_paused = true)]
async fn without_the_api_server_nobody_acts_after_the_lease_could_have_expired() {
    for verdict in [
        Verdict::HangBefore,
        Verdict::HangAfter,
        Verdict::CutAfter,
        Verdict::Refuse(500),
        Verdict::Refuse(403),
    ] {
        let server = Server::new();
        let cut_off = server.by_another_way();
        let mut one = Candidate::start(&cut_off, "one");
        one.leads().await;
        let mut two = Candidate::start(&server, "two");
        tokio::time::sleep(secs(20)).await;
        cut_off.set_gate(Some(Arc::new(Always(verdict))));
        let begun = Instant::now();
        // What lands unheard may keep the other away; it gives no permit.
        while begun.elapsed() < secs(120) {
            assert!(
                !(one.may_act() && two.may_act()),
                "{verdict:?}: two may act"
            );
            if begun.elapsed() > DURATION {
                assert!(!one.may_act(), "{verdict:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let heard = matches!(&*one.standing.borrow(), Standing::Trouble(text)
            if text.starts_with("Lease system/operator: "));
        assert!(heard, "{verdict:?}: {:?}", one.standing);
        if !matches!(verdict, Verdict::HangAfter | Verdict::CutAfter) {
            two.leads().await;
        }
        cut_off.set_gate(None);
        two.task.abort();
        one.leads().await;
    }
}

/// B154: in the command, an identity is the pod's name and something random.
#[tokio::test(start_paused = true)]
async fn of_many_who_start_at_once_one_leads() {
    let server = Server::new();
    let names = ["a", "b", "c", "d", "e"];
    let all: Vec<Candidate> = names.map(|n| Candidate::start(&server, n)).into();
    tokio::time::sleep(secs(10)).await;
    let leading = all.iter().filter(|c| c.may_act()).count();
    assert_eq!(leading, 1);
}

#[tokio::test(start_paused = true)]
async fn a_steady_leader_writes_three_times_in_a_lease() {
    let server = Server::new();
    let mut one = Candidate::start(&server, "one");
    one.leads().await;
    server.take_asked();
    tokio::time::sleep(secs(150)).await;
    let asked = server.take_asked();
    let writes = asked.iter().filter(|t| t.verb.is_write()).count();
    assert!((29..=31).contains(&writes), "{writes} writes in 150 s");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_someone_removes_makes_no_two_leaders() {
    let server = Server::new();
    let cut_off = server.by_another_way();
    let mut one = Candidate::start(&cut_off, "one");
    one.leads().await;
    let mut two = Candidate::start(&server, "two");
    tokio::time::sleep(secs(31)).await;
    cut_off.set_gate(Some(Arc::new(Always(Verdict::HangBefore))));
    let lease = Target {
        group: "coordination.k8s.io/v1".into(),
        resource: "leases".into(),
        ..Target::proxies(crate::double::Verb::Delete, "system", Some("operator"))
    };
    server.ask(&lease, &serde_json::Value::Null).unwrap();
    two.leads().await;
    assert!(!one.may_act());
}
