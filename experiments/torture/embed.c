/* A program with an embedded interpreter. Its arguments are HOW PYTHON ARGUMENTS...

   HOW is plain (like python, but without Python's signal handlers), isolated (the same with -I),
   again (three interpreters one after another) or subs (three at once beside the main one). With the
   last two, each interpreter runs the text in the first of ARGUMENTS. */
#include <Python.h>
#include <stdio.h>
#include <string.h>

static void stop(PyStatus status)
{
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
}

static void begin(const char *how, int argc, char **argv)
{
    PyConfig config;
    if (strcmp(how, "isolated") == 0)
        PyConfig_InitIsolatedConfig(&config);
    else
        PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    stop(PyConfig_SetBytesString(&config, &config.program_name, argv[0]));
    stop(PyConfig_SetBytesString(&config, &config.executable, argv[0]));
    if (strcmp(how, "plain") == 0 || strcmp(how, "isolated") == 0) {
        config.parse_argv = 1;
        stop(PyConfig_SetBytesArgv(&config, argc, argv));
    }
    stop(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
}

int main(int argc, char **argv)
{
    const char *how = argv[1];
    int failed = 0;
    if (argc < 4)
        return 2;
    if (strcmp(how, "again") == 0) {
        for (int i = 0; i < 3; i++) {
            begin(how, argc - 2, argv + 2);
            failed |= PyRun_SimpleString(argv[3]);
            failed |= Py_FinalizeEx();
        }
        return failed != 0;
    }
    begin(how, argc - 2, argv + 2);
    if (strcmp(how, "subs") == 0) {
        PyThreadState *first = PyThreadState_Get(), *made[3];
        for (int i = 0; i < 3; i++) {
            made[i] = Py_NewInterpreter();
            if (made[i] == NULL)
                return 3;
            failed |= PyRun_SimpleString(argv[3]);
        }
        for (int i = 2; i >= 0; i--) {
            PyThreadState_Swap(made[i]);
            Py_EndInterpreter(made[i]);
        }
        PyThreadState_Swap(first);
        failed |= PyRun_SimpleString(argv[3]);
        return failed | (Py_FinalizeEx() != 0);
    }
    return Py_RunMain();
}
