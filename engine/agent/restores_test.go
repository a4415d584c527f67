package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// TestVerificationsAreRemembered: the last attempt, and the last success; not of a guest that is not backed up any more. A restart
// forgets none.
func TestVerificationsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := ledger.Open(t.TempDir())
		require.NoError(t, err)
		o := Options{Ledger: store, Identity: "father", Log: slog.New(slog.DiscardHandler)}
		m := remembered(o)
		db := model.Address{Kind: "vm", Name: "db"}
		want := &model.Want{State: model.State{db: {Addr: db}}, Backups: map[model.Address]*model.Backup{db: {}}}
		tried := func(status apply.Status, err error) {
			step := plan.Step{Address: model.Address{Kind: "restore", Name: "vm-db"}, Action: plan.Create, Want: &model.Resource{Spec: &model.RestoreTest{Of: db, Archive: "local:backup/x"}}}
			m.noteRestores(&engine.Report{Want: want, Results: []apply.Result{{Step: step, Status: status, Err: err}}})
		}
		first := time.Now().UTC()
		tried(apply.Done, nil)
		require.Equal(t, model.Restored{Tried: first, Proved: first, Archive: "local:backup/x"}, m.restored()[db])
		time.Sleep(time.Hour)
		tried(apply.Failed, errors.New("torn"))
		m = remembered(o)
		require.Equal(t, model.Restored{Tried: first.Add(time.Hour), Proved: first, Archive: "local:backup/x", Error: "torn"}, m.restored()[db])
		require.False(t, m.drifted("", &plan.Plan{Steps: []plan.Step{{Address: model.Address{Kind: "restore", Name: "vm-db"}}}}), "it differs from nothing")
		before := m.restored()
		tried(apply.Failed, fmt.Errorf("restoring: %w", context.Canceled))
		require.Equal(t, before, m.restored(), "the agent stopped")
		replaced := plan.Step{Address: db, Action: plan.Replace, Want: &model.Resource{}}
		m.noteRestores(&engine.Report{Want: want, Results: []apply.Result{{Step: replaced, Status: apply.Failed}}})
		require.Equal(t, before, m.restored())
		m.noteRestores(&engine.Report{Want: want, Results: []apply.Result{{Step: replaced, Status: apply.Done}}})
		require.Empty(t, m.restored(), "the backups of the guest before prove nothing about this one")
		tried(apply.Done, nil)
		delete(want.Backups, db)
		m.noteRestores(&engine.Report{Want: want})
		require.Empty(t, m.restored())
	})
}
