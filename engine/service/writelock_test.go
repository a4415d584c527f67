package service

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

func TestTheAgentAllowsToDestroy(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	socket, end := controltest.Serve(t, f, "https://a:8006")
	var notes strings.Builder
	verb := Verb{Name: "destroy", Env: func(key string) string {
		return map[string]string{"HOMESTAK_SOCKET": socket, "HOMESTAK_DATA_DIR": "/nowhere"}[key]
	}, Note: func(format string, args ...any) { fmt.Fprintf(&notes, format, args...) }}
	host := &model.Host{Name: "father", API: "https://a:8006/"}
	require.NoError(t, verb.AllowDestroy(t.Context(), host, "kept-test", false), "a recipe is not deployed by it")
	require.NoError(t, verb.AllowDestroy(t.Context(), &model.Host{Name: "mother"}, "web", false), "another host")

	err := verb.AllowDestroy(t.Context(), host, "web", false)
	_, refused := errors.AsType[*control.RefusedError](err)
	require.True(t, refused)
	require.ErrorContains(t, err, "it would only create it again\nremove it in git and push, which destroys it too; or add --suspend")
	require.Empty(t, f.Status().Suspended)

	require.NoError(t, verb.AllowDestroy(t.Context(), host, "web", true))
	require.Contains(t, notes.String(), "homestak-gitops resume -M web")
	require.Len(t, f.Status().Suspended, 1)
	require.Equal(t, "web", f.Status().Suspended[0].Manifest)
	require.NoError(t, verb.AllowDestroy(t.Context(), host, "web", false), "it is suspended already")
	_, _ = f.Resume("web")
	require.NoError(t, f.Suspend(ledger.Suspension{Reason: "all of it"}))
	require.NoError(t, verb.AllowDestroy(t.Context(), host, "web", false), "everything is")
	end()
	_, _ = f.Resume("")
	require.NoError(t, verb.AllowDestroy(t.Context(), host, "web", false), "no agent runs")
}
