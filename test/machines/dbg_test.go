package machines_test

import (
	"os"
	"testing"
	"time"
)

func TestDebug(t *testing.T) {
	w := begin(t)
	t.Log(w.Try("sh", "-c", "fail2ban-client -V; echo $?"))
	full, none := w.whole(), parse(t, `"config": {}`)
	at := time.Now()
	w.apply(full)
	t.Log("apply", time.Since(at))
	at = time.Now()
	a := w.snapshot()
	t.Log("snapshot", time.Since(at))
	b := w.snapshot()
	os.WriteFile("/tmp/snap", []byte(a), 0o644)
	os.WriteFile("/tmp/owned", []byte(w.Run0("cat /var/lib/homestak-gitops/owned.json")), 0o644)
	at = time.Now()
	w.apply(none)
	t.Log("none", time.Since(at))
	at = time.Now()
	w.apply(full)
	t.Log("again", time.Since(at))
	c := w.snapshot()
	os.WriteFile("/tmp/snap2", []byte(c), 0o644)
	os.WriteFile("/tmp/owned2", []byte(w.Run0("cat /var/lib/homestak-gitops/owned.json")), 0o644)
	same(t, a, b, "same")
}
