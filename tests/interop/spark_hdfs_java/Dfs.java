import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** Dfs PORT DIRECTORY: HDFS in one process, until it is killed. */
public class Dfs {
  public static void main(String[] arguments) throws Exception {
    MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(new Configuration(), new File(arguments[1]));
    MiniDFSCluster cluster = builder.nameNodePort(Integer.parseInt(arguments[0])).numDataNodes(1).build();
    cluster.waitActive();
    Thread.sleep(Long.MAX_VALUE);
  }
}
