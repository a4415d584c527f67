package wire_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The codes and their status are a contract with children of other versions.
func TestTable(t *testing.T) {
	var got []string
	for _, k := range wire.AllProblems() {
		require.NotEmpty(t, k.Message, k.Code)
		require.NotEmpty(t, k.Hint, k.Code)
		require.Equal(t, k, wire.LookupProblem(k.Code))
		got = append(got, fmt.Sprintf("%s %d", k.Code, k.Status))
	}
	require.Equal(t, []string{
		"E100 404", "E101 400", "E200 404", "E201 404", "E202 404", "E300 401", "E301 401", "E302 403", "E303 401",
		"E400 422", "E429 429", "E500 500", "E501 0",
	}, got)
	require.Equal(t, wire.CodeInternal, wire.LookupProblem("E999").Code)
}

func TestError(t *testing.T) {
	err := error(wire.Errorf(wire.CodeConnection, "reading: %w", io.ErrUnexpectedEOF))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "E501: reading: unexpected EOF\ncheck that the server runs, that its address is right, and that no firewall is in between", err.Error())
	require.Equal(t, wire.CodeConnection, wire.CodeOf(fmt.Errorf("fetching: %w", err)))
	require.Equal(t, wire.CodeInternal, wire.CodeOf(errors.New("any")))
	require.Equal(t, http.StatusForbidden, (&wire.Error{Code: wire.CodeNotYours}).Status())
	require.Equal(t, http.StatusInternalServerError, (&wire.Error{Code: wire.CodeConnection}).Status(), "what only a client notices is no answer")
}

// What a server writes, a client reads.
func TestBody(t *testing.T) {
	for _, k := range wire.AllProblems() {
		e := &wire.Error{Code: k.Code}
		require.Equal(t, &wire.Error{Code: k.Code, Message: k.Message, Hint: k.Hint}, wire.ReadProblem(e.Status(), e.Body()))
	}
	require.JSONEq(t, `{"error":{"code":"E200","message":"no node \"web\"","hint":"check it"}}`,
		string((&wire.Error{Code: wire.CodeNotFound, Message: `no node "web"`, Hint: "check it"}).Body()))
}

// An answer may come from anybody, such as a proxy.
func TestReadAnything(t *testing.T) {
	for _, body := range []string{"<html>no", "", `{"error":{"code":"E9"}}`, `{"error":[]}`, `{"error":{"message":"x"}}`} {
		require.Equal(t, &wire.Error{Code: wire.CodeNoEndpoint, Message: "the server answered 404 Not Found"}, wire.ReadProblem(http.StatusNotFound, []byte(body)), body)
	}
	require.Equal(t, wire.CodeNotYours, wire.ReadProblem(http.StatusNotFound, []byte(`{"error":{"code":"E302"}}`)).Code, "the document is more exact than the status")
	require.Equal(t, wire.CodeInternal, wire.ReadProblem(http.StatusBadGateway, nil).Code)
	require.Equal(t, wire.CodeInternal, wire.ReadProblem(http.StatusTeapot, nil).Code)
	long := wire.ReadProblem(404, (&wire.Error{Code: wire.CodeNotFound, Message: "\x1b[31m" + strings.Repeat("ü", 400)}).Body())
	require.NotContains(t, long.Message, "\x1b")
	require.LessOrEqual(t, len(long.Message), 500+len("…"))
}
