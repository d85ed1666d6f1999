use super::*;

const LIMIT: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn a_moving_connection_is_not_idle() {
    let clock = Arc::new(IdleClock::new());
    let start = Instant::now();
    let moving = Arc::clone(&clock);
    tokio::spawn(async move {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(6)).await;
            moving.touch();
        }
    });
    clock.idle_for(LIMIT).await;
    assert_eq!(start.elapsed().as_secs(), 40);
}

#[tokio::test(start_paused = true)]
async fn a_held_clock_is_not_idle_but_quiet() {
    let clock = IdleClock::new();
    let start = Instant::now();
    let hold = clock.hold();
    clock.quiet_for(LIMIT).await;
    assert_eq!(start.elapsed().as_secs(), 10);
    assert!(
        tokio::time::timeout(LIMIT * 10, clock.idle_for(LIMIT))
            .await
            .is_err()
    );
    drop(hold);
    let released = Instant::now();
    clock.idle_for(LIMIT).await;
    assert_eq!(released.elapsed().as_secs(), 10);
}
